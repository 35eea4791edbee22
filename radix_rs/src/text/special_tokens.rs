//! Keeps what a client writes from becoming the tokens that a chat's roles and ends are made of.

use std::collections::HashSet;

use super::blanks::is_blank;

/// Marks come from a plane of private use, in which no text has a meaning to trim or to case.
const FIRST_MARK: u32 = 0xF0000;

/// The texts that a tokenizer takes for control tokens, wherever it meets them.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    texts: Vec<String>,
    begins: HashSet<String>,
    longest: usize,
}

impl SpecialTokens {
    pub fn new(texts: impl IntoIterator<Item = String>) -> Self {
        // One character cannot be cut.
        let texts: Vec<_> = texts
            .into_iter()
            .filter(|text| text.chars().count() > 1)
            .collect();
        let begins: HashSet<_> = texts
            .iter()
            .flat_map(|text| {
                text.char_indices()
                    .skip(1)
                    .map(|(end, _)| text[..end].to_owned())
            })
            .collect();
        let longest = begins.iter().map(String::len).max().unwrap_or(0);
        Self {
            texts,
            begins,
            longest,
        }
    }

    /// `text` with a mark in each special token, and after one that may be completed by what the
    /// template writes next.
    pub fn split(&self, text: &str, mark: char) -> String {
        let mut cut = text.to_owned();
        // One search a token, as an alternation of all tries each of them at each "<".
        for special in &self.texts {
            if cut.contains(special.as_str()) {
                let mut chars = special.chars();
                let first: String = chars.next().into_iter().chain([mark]).collect();
                cut = cut.replace(special.as_str(), &(first + chars.as_str()));
            }
        }
        let end = cut.trim_end_matches(is_blank).len(); // templates may trim
        let is_begun = (end.saturating_sub(self.longest)..end)
            .any(|start| cut.is_char_boundary(start) && self.begins.contains(&cut[start..end]));
        if is_begun {
            cut.insert(end, mark);
        }
        cut
    }
}

/// A character that is in none of the texts.
pub(super) fn unused_mark<'a>(texts: impl Iterator<Item = &'a str>) -> char {
    let is_mark = |&each: &char| u32::from(each) >= FIRST_MARK;
    let used: HashSet<char> = texts.flat_map(str::chars).filter(is_mark).collect();
    let mut marks = (FIRST_MARK..=char::MAX.into()).filter_map(char::from_u32);
    // Of a text that has all 131,072 of them the last is cut out.
    marks.find(|mark| !used.contains(mark)).unwrap_or(char::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: char = '\u{F0000}';

    fn special() -> SpecialTokens {
        SpecialTokens::new(["<|end|>".to_owned(), "é!".to_owned(), "x".to_owned()])
    }

    #[test]
    fn a_special_token_is_cut_after_its_first_character() {
        assert_eq!(
            special().split("a<|end|>b é!x", M),
            format!("a<{M}|end|>b é{M}!x")
        );
    }

    #[test]
    fn what_may_become_one_is_cut_off_before_blanks_a_template_may_trim() {
        assert_eq!(special().split("a<|en \n", M), format!("a<|en{M} \n"));
        assert_eq!(special().split("é", M), format!("é{M}"));
        assert_eq!(special().split("plain", M), "plain");
        assert_eq!(special().split("", M), "");
    }

    #[test]
    fn a_mark_is_in_no_text() {
        let texts = ["a\u{F0000}", "\u{F0001}"];
        assert_eq!(unused_mark(texts.into_iter()), '\u{F0002}');
    }
}
