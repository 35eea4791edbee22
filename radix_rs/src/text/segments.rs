//! Where a text may be cut so that its parts have, one after the other, the tokens of the whole.
//!
//! A tokenizer takes special tokens out of a text first and never looks across them. So may we, at those whose
//! places nobody can dispute: no other added token overlaps them, nor do they overlap themselves.

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::AddedToken;

#[derive(Debug)]
pub(super) struct Segments {
    cuts: Option<AhoCorasick>,
}

impl Segments {
    /// Of a tokenizer with these added tokens.
    pub fn new(added: &[AddedToken]) -> Self {
        let takes_blanks = |token: &&AddedToken| {
            token.lstrip || token.rstrip || token.single_word || token.normalized
        };
        let disputed = |token: &&AddedToken| {
            let is_other = |other: &&AddedToken| other.content != token.content;
            let text = token.content.as_str();
            added
                .iter()
                .filter(is_other)
                .any(|other| meet(text, &other.content))
                || continues(text, text)
        };
        let cuts: Vec<_> = added
            .iter()
            .filter(|token| token.special && !token.content.is_empty())
            .filter(|token| !takes_blanks(token) && !disputed(token))
            .map(|token| token.content.as_str())
            .collect();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&cuts);
        Self {
            cuts: automaton.ok().filter(|_| !cuts.is_empty()),
        }
    }

    /// The parts of `text`, which joined are all of it.
    pub fn of<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let cuts = self.cuts.iter().flat_map(move |cuts| cuts.find_iter(text));
        let ends = cuts
            .flat_map(|cut| [cut.start(), cut.end()])
            .chain([text.len()]);
        let mut start = 0;
        ends.filter_map(move |end| {
            let part = &text[start..end];
            start = end;
            (!part.is_empty()).then_some(part)
        })
    }
}

/// Whether there is a text in which both are and share a character.
fn meet(one: &str, other: &str) -> bool {
    one.contains(other) || other.contains(one) || continues(one, other) || continues(other, one)
}

/// Whether `next` may begin within `text`, and end after it.
fn continues(text: &str, next: &str) -> bool {
    text.char_indices()
        .skip(1)
        .any(|(start, _)| next.starts_with(&text[start..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn special(text: &str) -> AddedToken {
        AddedToken::from(text, true).normalized(false)
    }

    fn cut(added: &[AddedToken], text: &str) -> Vec<String> {
        Segments::new(added).of(text).map(str::to_owned).collect()
    }

    #[test]
    fn a_text_is_cut_around_its_special_tokens() {
        let added = [special("<|a|>"), special("<|b|>")];
        assert_eq!(cut(&added, "x<|a|><|b|>y"), ["x", "<|a|>", "<|b|>", "y"]);
        assert_eq!(cut(&added, "<|a|>"), ["<|a|>"]);
        assert!(cut(&added, "").is_empty());
        assert_eq!(cut(&[], "x<|a|>y"), ["x<|a|>y"]);
    }

    #[test]
    fn no_cut_is_where_two_tokens_may_overlap() {
        let added = [
            special("<a>"),
            special("<a><b>"),
            special("|c|"),
            special("!d"),
            special("e!"),
        ];
        assert_eq!(cut(&added, "x<a>x|c|x!dxe!x"), ["x<a>x|c|x!dxe!x"]);
    }

    #[test]
    fn no_cut_is_at_a_token_that_takes_its_blanks_along_or_is_not_special() {
        let added = [
            special("<a>").lstrip(true),
            special("<b>").rstrip(true),
            special("<c>").single_word(true),
            AddedToken::from("<d>", false),
            AddedToken::from("<e>", true),
        ];
        let is_normalized = added[4].normalized;
        assert_eq!(cut(&added, "x <a> <b> <c> <d>y").len(), 1);
        assert_eq!(
            cut(&added, "x<e>y").len(),
            if is_normalized { 1 } else { 3 }
        );
    }
}
