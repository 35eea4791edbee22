//! Stories of `tests/traces/` at the top of the repository, replayed on the crate alone. Their format is
//! explained in `tests/test_traces.py`, which also writes the answers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::fmt::{Display, Write};
use std::fs;
use std::path::Path;

use radix_rs::chain::HashKey;
use radix_rs::delta::Event;
use radix_rs::error::TreeError;
use radix_rs::tree::{Claim, EvictPolicy, Namespace, Tree};

#[test]
fn the_tree_answers_as_the_traces_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/traces");
    let mut traces = 0;
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let mut replay = Replay::default();
        let mut answered = String::new();
        for line in text.lines().filter(|line| !line.starts_with('|')) {
            writeln!(answered, "{line}").unwrap();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            for answer in replay.run(line) {
                writeln!(answered, "| {answer}").unwrap();
            }
            replay.tree().check().unwrap();
        }
        assert_eq!(answered, text, "{}", path.display());
        traces += 1;
    }
    assert!(traces > 10, "{traces} traces found");
}

#[derive(Default)]
struct Replay {
    tree: Option<Tree>,
    extra_key: String,
    cache_salt: String,
    next_slot: i32,
    nodes: HashMap<String, u64>,
    receipts: HashMap<String, Vec<u64>>,
    used: HashMap<String, u64>,
    requests: HashMap<String, Request>,
    blocks: HashMap<u64, String>,
}

#[derive(Clone)]
struct Request {
    row: Vec<i32>,
    owned: usize,
    counted: usize,
}

struct Words<'a> {
    plain: Vec<&'a str>,
    options: HashMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn new(words: impl Iterator<Item = &'a str>) -> Self {
        let (options, plain): (Vec<&str>, _) = words.partition(|word| word.contains('='));
        let options = options
            .into_iter()
            .filter_map(|word| word.split_once('='))
            .collect();
        Self { plain, options }
    }

    fn number(&self, option: &str) -> usize {
        self.options
            .get(option)
            .map_or(0, |number| number.parse().unwrap())
    }

    fn policy(&self) -> Result<EvictPolicy, TreeError> {
        let name = self.options.get("policy").unwrap_or(&"lru");
        let options: Vec<(&str, u64)> = self
            .options
            .iter()
            .filter(|(option, _)| !["page", "block", "policy"].contains(option))
            .map(|(&option, value)| (option, value.parse().unwrap()))
            .collect();
        EvictPolicy::new(name, &options)
    }

    fn name(&self) -> String {
        self.options.get("as").unwrap_or(&"").to_string()
    }

    fn tokens(&self) -> Vec<u32> {
        tokens_of(&self.plain)
    }

    /// Those after the name of a request.
    fn tokens_of_request(&self) -> Vec<u32> {
        tokens_of(&self.plain[1..])
    }

    fn claim(&self, request: &Request) -> Claim {
        let owned = self.options.get("owned");
        Claim {
            owned_from: owned.map_or(request.owned, |owned| owned.parse().unwrap()),
            counted_to: request.counted,
            priority: i64::try_from(self.number("priority")).unwrap(),
        }
    }
}

fn tokens_of(words: &[&str]) -> Vec<u32> {
    let mut tokens = Vec::new();
    for word in words {
        if let Some((start, end)) = word.split_once("..") {
            tokens.extend(start.parse::<u32>().unwrap()..end.parse().unwrap());
        } else if let Some((token, count)) = word.split_once('*') {
            let token: u32 = token.parse().unwrap();
            tokens.extend(std::iter::repeat_n(token, count.parse().unwrap()));
        } else {
            tokens.push(word.parse().unwrap());
        }
    }
    tokens
}

impl Replay {
    fn tree(&self) -> &Tree {
        self.tree.as_ref().unwrap()
    }

    fn tree_mut(&mut self) -> &mut Tree {
        self.tree.as_mut().unwrap()
    }

    fn run(&mut self, command: &str) -> Vec<String> {
        let mut words = command.split_whitespace();
        let verb = words.next().unwrap();
        self.answer(verb, &Words::new(words))
            .unwrap_or_else(|error| vec![format!("error: {}", without_numbers(&error))])
    }

    fn answer(&mut self, verb: &str, words: &Words<'_>) -> Result<Vec<String>, TreeError> {
        let mut lines = Vec::new();
        match verb {
            "tree" => {
                let key = HashKey::derive(b"traces");
                let (page_size, block_size) = (words.number("page"), words.number("block"));
                let tree = Tree::new(page_size, block_size, key, "m", words.policy()?)?;
                self.tree = Some(tree);
                self.extra_key.clear();
                self.cache_salt.clear();
            }
            "namespace" => {
                self.extra_key = words.plain[0].replace('-', "");
                self.cache_salt = words.plain[1].replace('-', "");
            }
            "insert" => lines.push(self.insert(words)?),
            "match" => lines.push(self.find(words)?),
            "peek" => {
                let namespace = namespace(&self.extra_key, &self.cache_salt);
                let length = self.tree().peek(&words.tokens(), namespace)?;
                lines.push(format!("length={length}"));
            }
            "touch" => {
                let (extra_key, cache_salt) = (self.extra_key.clone(), self.cache_salt.clone());
                let space = namespace(&extra_key, &cache_salt);
                let found = self.tree_mut().match_prefix(&words.tokens(), space)?;
                lines.push(format!("length={}", found.length));
            }
            "admit" => lines.push(self.admit(&words.name(), &words.tokens(), None)?),
            "readmit" => {
                let receipt = self.receipt(words.plain[0]);
                let tokens = words.tokens_of_request();
                lines.push(self.admit(words.plain[0], &tokens, Some(receipt))?);
            }
            "checkpoint" => lines.push(self.checkpoint(words)?),
            "finish" => lines.push(self.finish(words)?),
            "lock" => {
                let node = self.nodes[words.plain[0]];
                let receipt = self.tree_mut().lock(node)?;
                let name = words.plain[0].to_owned();
                self.receipts.entry(name).or_default().push(receipt);
            }
            "unlock" => {
                let receipt = self.receipt(words.plain[0]);
                self.tree_mut().unlock(receipt)?;
            }
            "evict" => {
                let slots = self
                    .tree_mut()
                    .evict(words.plain[0].parse().unwrap())
                    .to_vec();
                lines.push(format!("slots={}", ranges(&slots)));
            }
            "reset" => {
                let mut slots = self.tree_mut().reset()?.to_vec();
                slots.sort_unstable();
                lines.push(format!("slots={}", ranges(&slots)));
            }
            "dump" => lines.extend(self.tree().dump().lines().map(str::to_owned)),
            "deltas" => lines = self.deltas(),
            "snapshot" => {
                let max_blocks = words.plain[0].parse().unwrap();
                for chunk in self.tree().snapshot(max_blocks)? {
                    lines.push("chunk".to_owned());
                    lines.extend(chunk.iter().map(|event| self.event(event)));
                }
            }
            "stats" => {
                let stats = self.tree().stats();
                lines.push(format!(
                    "nodes={} evictable={} protected={} locks={} evicted={}",
                    stats.nodes, stats.evictable, stats.protected, stats.locks, stats.evicted_total
                ));
            }
            _ => panic!("no such command: {verb}"),
        }
        Ok(lines)
    }

    fn insert(&mut self, words: &Words<'_>) -> Result<String, TreeError> {
        let tokens = words.tokens();
        let owned = words.number("owned");
        // Positions the tree owns already are given slots it must not take.
        let mut slots = vec![-1; owned.min(tokens.len())];
        let fresh = i32::try_from(tokens.len() - slots.len()).unwrap();
        slots.extend(self.next_slot..self.next_slot + fresh);
        let done = self.tree.as_mut().unwrap().insert(
            &tokens,
            &slots,
            Claim {
                owned_from: owned,
                counted_to: words.number("counted"),
                priority: i64::try_from(words.number("priority")).unwrap(),
            },
            namespace(&self.extra_key, &self.cache_salt),
        )?;
        self.next_slot += fresh;
        self.nodes.insert(words.name(), done.node);
        let duplicates = if done.duplicates.is_empty() {
            "none".to_owned()
        } else {
            format!("{:?}", done.duplicates)
        };
        Ok(format!(
            "held={} duplicates={duplicates}",
            done.prefix_length
        ))
    }

    /// The newest live one, which is used now; if there is none, the one used last.
    fn receipt(&mut self, name: &str) -> u64 {
        let live = self.receipts.get_mut(name).and_then(Vec::pop);
        let receipt = live.unwrap_or_else(|| self.used[name]);
        self.used.insert(name.to_owned(), receipt);
        receipt
    }

    fn admit(
        &mut self,
        name: &str,
        tokens: &[u32],
        receipt: Option<u64>,
    ) -> Result<String, TreeError> {
        let tree = self.tree.as_mut().unwrap();
        let space = namespace(&self.extra_key, &self.cache_salt);
        let admitted = tree.admit(tokens, receipt, space)?;
        let row = path_slots(tree, admitted.node, 0)?;
        let answer = format!("length={} slots={}", admitted.length, ranges(&row));
        let request = Request {
            owned: row.len(),
            row,
            counted: 0,
        };
        self.requests.insert(name.to_owned(), request);
        self.nodes.insert(name.to_owned(), admitted.node);
        let receipts = self.receipts.entry(name.to_owned()).or_default();
        receipts.push(admitted.receipt);
        Ok(answer)
    }

    fn checkpoint(&mut self, words: &Words<'_>) -> Result<String, TreeError> {
        let name = words.plain[0].to_owned();
        let tokens = words.tokens_of_request();
        let (mut request, receipt) = self.extend(&name, tokens.len());
        let claim = words.claim(&request);
        let tree = self.tree.as_mut().unwrap();
        let space = namespace(&self.extra_key, &self.cache_salt);
        let prompt = words.number("prompt");
        let done = tree.checkpoint(&tokens, &request.row, prompt, receipt, claim, space);
        let live = done.as_ref().map_or(receipt, |done| done.receipt);
        self.receipts.entry(name.clone()).or_default().push(live);
        let done = done?;
        let held = path_slots(tree, done.node, claim.owned_from)?;
        request.row[claim.owned_from..done.length].copy_from_slice(&held);
        request.owned = done.length;
        request.counted = done.length;
        let answer = format!(
            "length={} held={} freed={} row={}",
            done.length,
            done.prefix_length,
            ranges(&done.freed.to_vec()),
            ranges(&request.row)
        );
        self.nodes.insert(name.clone(), done.node);
        self.requests.insert(name, request);
        Ok(answer)
    }

    fn finish(&mut self, words: &Words<'_>) -> Result<String, TreeError> {
        let tokens = words.tokens_of_request();
        let length = tokens.len() + words.number("over");
        let (request, receipt) = self.extend(words.plain[0], length);
        let freed = self.tree.as_mut().unwrap().finish(
            &tokens,
            &request.row,
            words.number("prompt"),
            receipt,
            words.claim(&request),
            namespace(&self.extra_key, &self.cache_salt),
        )?;
        Ok(format!("freed={}", ranges(&freed.to_vec())))
    }

    /// The request with slots for so many tokens, and its receipt.
    fn extend(&mut self, name: &str, length: usize) -> (Request, u64) {
        let receipt = self.receipt(name);
        let request = self.requests.get_mut(name).unwrap();
        let fresh = i32::try_from(length.saturating_sub(request.row.len())).unwrap();
        request.row.extend(self.next_slot..self.next_slot + fresh);
        self.next_slot += fresh;
        (request.clone(), receipt)
    }

    fn find(&mut self, words: &Words<'_>) -> Result<String, TreeError> {
        let namespace = namespace(&self.extra_key, &self.cache_salt);
        let tree = self.tree.as_mut().unwrap();
        let found = tree.match_prefix(&words.tokens(), namespace)?;
        let slots = path_slots(tree, found.node, 0)?;
        self.nodes.insert(words.name(), found.node);
        Ok(format!("length={} slots={}", found.length, ranges(&slots)))
    }

    fn deltas(&mut self) -> Vec<String> {
        let Some(deltas) = self.tree_mut().drain_deltas() else {
            return vec!["none".to_owned()];
        };
        let mut lines: Vec<String> = deltas
            .events
            .iter()
            .map(|event| self.event(event))
            .collect();
        lines.push(format!(
            "stored={} removed={} count={}",
            deltas.stored, deltas.removed, deltas.count
        ));
        lines
    }

    fn event(&mut self, event: &Event) -> String {
        match event {
            Event::Stored(stored) => {
                let names: Vec<String> =
                    stored.hashes.iter().map(|&hash| self.name(hash)).collect();
                let parent = self.name(stored.parent);
                format!("stored {} after {parent}", names.join(" "))
            }
            Event::Removed(removed) => {
                let last = self.name(removed.last);
                format!("removed {last} count={}", removed.count)
            }
            Event::Cleared(_) => "cleared".to_owned(),
            Event::Expected(_) | Event::Dropped(_) => panic!("a tree expects nothing by itself"),
        }
    }

    /// Blocks are b1, b2, ... in the order in which they are first seen.
    fn name(&mut self, block: u64) -> String {
        if block == 0 {
            return "root".to_owned();
        }
        let next = format!("b{}", self.blocks.len() + 1);
        self.blocks.entry(block).or_insert(next).clone()
    }
}

/// In the order of their tokens.
fn path_slots(tree: &Tree, node: u64, since: usize) -> Result<Vec<i32>, TreeError> {
    let mut pieces: Vec<(usize, Vec<i32>)> = tree
        .path_slots(node, since)?
        .map(|(start, slots)| (start, slots.collect()))
        .collect();
    pieces.sort_unstable();
    Ok(pieces.into_iter().flat_map(|(_, slots)| slots).collect())
}

fn namespace<'a>(extra_key: &'a str, cache_salt: &'a str) -> Namespace<'a> {
    Namespace {
        extra_key,
        cache_salt,
    }
}

fn ranges(slots: &[i32]) -> String {
    let mut runs: Vec<std::ops::Range<i32>> = Vec::new();
    for &slot in slots {
        match runs.last_mut() {
            Some(run) if run.end == slot => run.end += 1,
            _ => runs.push(slot..slot + 1),
        }
    }
    if runs.is_empty() {
        return "none".to_owned();
    }
    let runs: Vec<String> = runs.iter().map(|run| format!("{run:?}")).collect();
    runs.join(",")
}

/// Handles are this crate's own choice: a trace does not name them.
fn without_numbers(error: &impl Display) -> String {
    let text = error.to_string();
    for kind in ["unknown node", "unknown receipt"] {
        if let Some(rest) = text.strip_prefix(kind) {
            return kind.to_owned()
                + rest.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit());
        }
    }
    text
}
