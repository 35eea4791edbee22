//! Where the time of requests went, of those that are traced: noted here, and sent by the control plane.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use http::HeaderMap;

use super::answer::Usage;
use super::status::Code;
use super::trace_context::TraceContext;
use crate::pick::{Pick, Random};

/// Requests that wait to be taken; more are dropped, as nobody is to wait for who takes them.
const MAX_WAITING: usize = 4096;

/// Spans of a request that is not tried again, about.
const USUAL_SPANS: usize = 6;

/// Which requests are traced.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// What is part of a trace already is traced if the caller's span is.
    pub follows_parent: bool,
    /// All others are if the low 64 bits of their trace's id are less.
    pub ids_below: u128,
}

impl Sampling {
    fn takes(self, parent: Option<TraceContext>, trace: u128) -> bool {
        match parent {
            Some(parent) if self.follows_parent => parent.is_sampled(),
            _ => trace & u128::from(u64::MAX) < self.ids_below,
        }
    }
}

/// Whose work a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// An answer to somebody.
    Server,
    /// A question to somebody.
    Client,
    /// What happens in between.
    Internal,
}

/// What is said of a span: neither prompts nor their ids, nor messages, which may quote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// A name.
    Text(String),
    /// A count.
    Number(i64),
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u64> for Attribute {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// A part of the time of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// What happened then.
    pub name: &'static str,
    /// Whose work it was.
    pub kind: SpanKind,
    /// No other span of the trace has it.
    pub id: u64,
    /// The span that it is part of.
    pub parent: Option<u64>,
    /// By the wall clock, in nanoseconds, as all times here.
    pub began_ns: u64,
    /// When it was over.
    pub ended_ns: u64,
    /// When the first of an answer came.
    pub answered_ns: Option<u64>,
    /// How a call ended.
    pub code: Option<Code>,
    /// What else is known.
    pub attributes: Vec<(&'static str, Attribute)>,
}

/// A request that is over; the first span is the whole request's, and the others are parts of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The trace's id.
    pub trace: u128,
    /// In the order of their begin.
    pub spans: Vec<Span>,
}

/// What is traced by one plane.
#[derive(Debug)]
pub(crate) struct Traces {
    /// None: nothing is.
    sampling: Option<Sampling>,
    waiting: Mutex<VecDeque<Traced>>,
    dropped: AtomicU64,
}

impl Traces {
    pub fn new(sampling: Option<Sampling>) -> Self {
        Self {
            sampling,
            waiting: Mutex::default(),
            dropped: AtomicU64::new(0),
        }
    }

    /// A request begins. `random`: another number each time.
    pub fn begin(&self, headers: &HeaderMap, mut random: impl FnMut() -> u64) -> Trace {
        let Some(sampling) = self.sampling else {
            return Trace::Passes;
        };
        let parent = TraceContext::read(headers);
        let mut ids = Random::new(random());
        let begun = || {
            TraceContext::new(
                (u128::from(random()) << 64) | u128::from(random()).max(1),
                0,
            )
        };
        let context = parent.unwrap_or_else(begun).with_span(id(&mut ids));
        if sampling.takes(parent, context.trace) {
            let context = context.with_sampled(true);
            return Trace::Recorded(Box::new(Recording::new(context, parent, ids)));
        }
        match parent {
            Some(parent) if !parent.is_sampled() => Trace::Passes,
            _ => Trace::Unsampled {
                context: context.with_sampled(false),
                begins: parent.is_none(),
            },
        }
    }

    /// A request is over.
    pub fn end(&self, trace: Trace, code: Code) {
        if let Trace::Recorded(recording) = trace {
            let traced = recording.over(code);
            let mut waiting = self.waiting();
            if waiting.len() < MAX_WAITING {
                waiting.push_back(traced);
            } else {
                self.dropped.fetch_add(1, Relaxed);
            }
        }
    }

    /// Requests that are over, the first at most `most`.
    pub fn take(&self, most: usize) -> Vec<Traced> {
        let mut waiting = self.waiting();
        let taken = most.min(waiting.len());
        waiting.drain(..taken).collect()
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Traced>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request's part in a trace.
pub(crate) enum Trace {
    /// None: what its caller says of one passes through.
    Passes,
    /// It is not to be recorded, here or where it goes.
    Unsampled {
        context: TraceContext,
        begins: bool,
    },
    Recorded(Box<Recording>),
}

impl Trace {
    fn recording(&mut self) -> Option<&mut Recording> {
        match self {
            Self::Recorded(recording) => Some(recording),
            _ => None,
        }
    }

    /// A step of this name begins, and the one before is over.
    pub fn begin(&mut self, name: &'static str) {
        if let Some(recording) = self.recording() {
            recording.begin(name, SpanKind::Internal);
        }
    }

    /// The last step is over.
    pub fn end(&mut self) {
        if let Some(recording) = self.recording() {
            recording.end();
        }
    }

    /// The request is read.
    pub fn read(&mut self, request_id: &str) {
        if let Some(recording) = self.recording() {
            recording.say_of_all("prefixlb.request_id", request_id);
        }
    }

    /// Its prompt is read.
    pub fn asks(&mut self, model: &str, tokens: usize) {
        if let Some(recording) = self.recording() {
            recording.say_of_all("gen_ai.request.model", model);
            recording.say_of_all("gen_ai.usage.input_tokens", tokens as u64);
        }
    }

    /// A replica is picked, of which so many tokens could be reused, and anywhere so many.
    pub fn picked(&mut self, pick: &Pick, matched: u64, available: u64) {
        if let Some(recording) = self.recording() {
            recording.say("prefixlb.replica", &*pick.replica);
            recording.say("prefixlb.reason", pick.reason.name());
            recording.say("prefixlb.matched_tokens", matched);
            recording.say("prefixlb.available_tokens", available);
        }
    }

    /// It goes to a replica.
    pub fn forward(&mut self, replica: &str) {
        if let Some(recording) = self.recording() {
            recording.begin("forward", SpanKind::Client);
            recording.say("prefixlb.replica", replica);
        }
    }

    /// The answer of that replica begins.
    pub fn answered(&mut self, pick: &Pick, matched: u64) {
        if let Some(recording) = self.recording() {
            recording.last().answered_ns = Some(recording.now_ns());
            recording.say_of_all("prefixlb.replica", &*pick.replica);
            recording.say_of_all("prefixlb.reason", pick.reason.name());
            recording.say_of_all("prefixlb.matched_tokens", matched);
        }
    }

    /// The answer says what it took.
    pub fn used(&mut self, usage: Usage) {
        if let Some(recording) = self.recording() {
            recording.say_of_all("gen_ai.usage.input_tokens", usage.prompt_tokens);
            recording.say_of_all("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens);
            recording.say_of_all("gen_ai.usage.output_tokens", usage.completion_tokens);
        }
    }

    /// The replica's part is over.
    pub fn forwarded(&mut self, code: Code) {
        if let Some(recording) = self.recording() {
            recording.end();
            recording.last().code = Some(code);
        }
    }

    /// What the replica is told, beside what passes: its work is part of the last step.
    pub fn write_into(&self, headers: &mut HeaderMap) {
        match self {
            Self::Passes => {}
            Self::Unsampled { context, begins } => context.write(*begins, headers),
            Self::Recorded(recording) => {
                let begins = recording.spans[0].parent.is_none();
                let step = recording.spans.last().map_or(0, |span| span.id);
                recording.context.with_span(step).write(begins, headers);
            }
        }
    }
}

/// A request that is recorded.
pub(crate) struct Recording {
    context: TraceContext,
    ids: Random,
    began: Instant,
    began_ns: u64,
    /// The whole request, and its steps.
    spans: Vec<Span>,
    /// Whether the last step goes on.
    goes_on: bool,
}

impl Recording {
    fn new(context: TraceContext, parent: Option<TraceContext>, ids: Random) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let began_ns = since.map_or(0, |since| since.as_nanos());
        let mut recording = Self {
            context,
            ids,
            began: Instant::now(),
            began_ns: u64::try_from(began_ns).unwrap_or(u64::MAX),
            spans: Vec::with_capacity(USUAL_SPANS),
            goes_on: false,
        };
        let whole = Span {
            id: context.span,
            parent: parent.map(|parent| parent.span),
            ..recording.span("prefixlb.v1.Inference/Generate", SpanKind::Server)
        };
        recording.spans.push(whole);
        recording
    }

    fn now_ns(&self) -> u64 {
        let elapsed_ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.began_ns.saturating_add(elapsed_ns)
    }

    /// One that begins now.
    fn span(&mut self, name: &'static str, kind: SpanKind) -> Span {
        let now_ns = self.now_ns();
        Span {
            name,
            kind,
            id: id(&mut self.ids),
            parent: Some(self.context.span),
            began_ns: now_ns,
            ended_ns: now_ns,
            answered_ns: None,
            code: None,
            attributes: Vec::new(),
        }
    }

    fn begin(&mut self, name: &'static str, kind: SpanKind) {
        self.end();
        let span = self.span(name, kind);
        self.spans.push(span);
        self.goes_on = true;
    }

    fn end(&mut self) {
        if mem::take(&mut self.goes_on) {
            self.last().ended_ns = self.now_ns();
        }
    }

    fn last(&mut self) -> &mut Span {
        let last = self.spans.len() - 1; // there is one from the first moment
        &mut self.spans[last]
    }

    fn say(&mut self, key: &'static str, value: impl Into<Attribute>) {
        self.last().attributes.push((key, value.into()));
    }

    /// In the place of what was said before.
    fn say_of_all(&mut self, key: &'static str, value: impl Into<Attribute>) {
        let attributes = &mut self.spans[0].attributes;
        attributes.retain(|(known, _)| *known != key);
        attributes.push((key, value.into()));
    }

    fn over(mut self, code: Code) -> Traced {
        self.end();
        self.spans[0].ended_ns = self.now_ns();
        self.spans[0].code = Some(code);
        Traced {
            trace: self.context.trace,
            spans: self.spans,
        }
    }
}

/// 0 would be none.
fn id(random: &mut Random) -> u64 {
    random.next().max(1)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const ALL: u128 = 1 << 64;

    fn traces(follows_parent: bool, ids_below: u128) -> Traces {
        Traces::new(Some(Sampling {
            follows_parent,
            ids_below,
        }))
    }

    fn caller(flags: &str) -> HeaderMap {
        let value = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", HeaderValue::try_from(value).unwrap());
        headers.insert("tracestate", HeaderValue::from_static("a=1"));
        headers
    }

    fn begin(traces: &Traces, headers: &HeaderMap) -> Trace {
        let mut random = Random::new(7);
        traces.begin(headers, || random.next())
    }

    fn written(trace: &Trace, headers: &HeaderMap) -> HeaderMap {
        let mut headers = headers.clone();
        trace.write_into(&mut headers);
        headers
    }

    #[test]
    fn who_records_nothing_changes_nothing() {
        for headers in [HeaderMap::new(), caller("00"), caller("01")] {
            let trace = begin(&Traces::new(None), &headers);
            assert!(matches!(trace, Trace::Passes));
            assert_eq!(written(&trace, &headers), headers);
        }
    }

    #[test]
    fn a_replica_is_told_what_was_decided_and_whose_part_its_work_is() {
        for (follows_parent, below, headers, is_recorded, flags) in [
            (true, 0, caller("01"), true, "01"),
            (true, ALL, caller("00"), false, "00"),
            (true, ALL, HeaderMap::new(), true, "01"),
            (true, 0, HeaderMap::new(), false, "00"),
            (false, 0, caller("01"), false, "00"),
            (false, ALL, caller("02"), true, "03"),
        ] {
            let mut trace = begin(&traces(follows_parent, below), &headers);
            trace.forward("r0");
            assert_eq!(matches!(trace, Trace::Recorded(_)), is_recorded);
            let headers = written(&trace, &headers);
            let said = headers["traceparent"].to_str().unwrap();
            assert!(said.ends_with(flags), "{said}");
            if let Trace::Recorded(recording) = &trace {
                let forward = recording.spans.last().unwrap();
                assert!(said.contains(&format!("-{:016x}-", forward.id)), "{said}");
            }
        }
    }

    #[test]
    fn a_caller_whose_words_mean_nothing_begins_no_trace_and_its_state_goes_with_them() {
        let mut headers = caller("01");
        headers.append("traceparent", HeaderValue::from_static("again"));
        let trace = begin(&traces(true, 0), &headers);
        let headers = written(&trace, &headers);
        assert_eq!(headers.get_all("traceparent").iter().count(), 1);
        assert!(!headers.contains_key("tracestate"));
    }

    #[test]
    fn about_as_many_are_taken_as_shall_be() {
        let traces = traces(true, ALL / 4);
        let mut random = Random::new(1);
        let headers = HeaderMap::new();
        let taken = (0..4000)
            .filter(|_| matches!(traces.begin(&headers, || random.next()), Trace::Recorded(_)))
            .count();
        assert!((900..1100).contains(&taken), "{taken}");
    }

    #[test]
    fn steps_are_parts_of_the_whole_and_follow_each_other() {
        let traces = traces(true, ALL);
        let mut trace = begin(&traces, &caller("01"));
        trace.begin("admission");
        trace.begin("match");
        trace.end();
        trace.forward("r0");
        trace.used(Usage::default());
        trace.used(Usage::default());
        trace.forwarded(Code::Unavailable);
        traces.end(trace, Code::Ok);
        let over = &traces.take(9)[0];
        assert_eq!(over.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        let [whole, steps @ ..] = &over.spans[..] else {
            panic!("no span");
        };
        assert_eq!(whole.parent, Some(0x00f0_67aa_0ba9_02b7));
        assert_eq!((whole.code, whole.attributes.len()), (Some(Code::Ok), 3));
        let mut before_ns = whole.began_ns;
        for step in steps {
            assert_eq!(step.parent, Some(whole.id));
            assert!(before_ns <= step.began_ns && step.began_ns <= step.ended_ns);
            before_ns = step.ended_ns;
        }
        assert!(before_ns <= whole.ended_ns);
        let names: Vec<_> = steps.iter().map(|step| (step.name, step.code)).collect();
        assert_eq!(
            names,
            [
                ("admission", None),
                ("match", None),
                ("forward", Some(Code::Unavailable))
            ]
        );
    }

    #[test]
    fn what_nobody_takes_is_bounded_and_counted() {
        let traces = traces(true, ALL);
        for _ in 0..MAX_WAITING + 5 {
            traces.end(begin(&traces, &HeaderMap::new()), Code::Ok);
        }
        assert_eq!(traces.dropped(), 5);
        assert_eq!(traces.take(1).len(), 1);
        assert_eq!(traces.take(usize::MAX).len(), MAX_WAITING - 1);
        assert!(traces.take(1).is_empty());
    }
}
