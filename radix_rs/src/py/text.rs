//! The Python face of tokenising.

use std::sync::Arc;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zerocopy::IntoBytes;

use crate::error;
use crate::text::{self, Message, Namespace, TextRules};

create_exception!(radix_rs, TextError, PyException);

impl From<error::TextError> for PyErr {
    fn from(error: error::TextError) -> Self {
        TextError::new_err(error.to_string())
    }
}

#[pyclass(frozen, module = "radix_rs")]
pub(super) struct TextCodec(pub(super) Arc<text::TextCodec>);

#[pymethods]
impl TextCodec {
    #[new]
    #[pyo3(signature = (tokenizer_json, *, chat_template = "", bos_token = "", eos_token = "", add_bos = false))]
    fn new(
        py: Python<'_>,
        tokenizer_json: &[u8],
        chat_template: &str,
        bos_token: &str,
        eos_token: &str,
        add_bos: bool,
    ) -> PyResult<Self> {
        let rules = TextRules {
            chat_template: chat_template.to_owned(),
            bos_token: bos_token.to_owned(),
            eos_token: eos_token.to_owned(),
            add_bos,
        };
        let codec = py.detach(|| text::TextCodec::new(tokenizer_json, rules))?;
        Ok(Self(Arc::new(codec)))
    }

    fn encode<'py>(&self, py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyBytes>> {
        let ids = py.detach(|| self.0.encode(Namespace::default(), text))?;
        Ok(PyBytes::new(py, ids.as_bytes()))
    }

    fn encode_chat<'py>(
        &self,
        py: Python<'py>,
        messages: Vec<(String, String)>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let messages: Vec<_> = messages
            .into_iter()
            .map(|(role, content)| Message { role, content })
            .collect();
        let ids = py.detach(|| self.0.encode_chat(Namespace::default(), &messages))?;
        Ok(PyBytes::new(py, ids.as_bytes()))
    }
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("TextError", module.py().get_type::<TextError>())?;
    module.add_class::<TextCodec>()
}
