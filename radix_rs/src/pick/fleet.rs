//! Who is there: replicas by name and number, and the models they serve.

use std::collections::HashMap;

use siphasher::sip::SipHasher13;

use super::breaker::Breaker;
use super::load::LoadReport;
use crate::error::RouterError;
use crate::index::{Position, ReplicaId, ReplicaSet};

/// What is known of one replica, apart from its blocks and its prompts in flight.
#[derive(Debug)]
pub(crate) struct Replica {
    pub name: String,
    /// The same in every router.
    pub name_hash: u64,
    pub model: String,
    pub block_size: u32,
    pub eligible: bool,
    /// A request failed there, and nobody has looked since whether it is alive.
    pub doubted: bool,
    pub breaker: Breaker,
    /// Of its mirror.
    pub position: Position,
    pub report: LoadReport,
}

impl Replica {
    /// May get prompts: it is meant to, and takes them.
    pub fn takes_prompts(&self) -> bool {
        self.eligible && !self.report.load.draining
    }

    /// Should get prompts before those that take them too, but are not.
    pub fn is_sound(&self, now_s: f64) -> bool {
        !self.doubted && self.breaker.admits(now_s)
    }
}

/// Replicas that serve one model, all with the same block size.
#[derive(Debug)]
pub(crate) struct Model {
    pub block_size: u32,
    pub members: ReplicaSet,
}

/// All replicas.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    numbers: HashMap<String, ReplicaId>,
    replicas: Vec<Option<Replica>>,
    models: HashMap<String, Model>,
}

impl Fleet {
    /// Whether `add` would take it.
    pub fn check_new(&self, name: &str, model: &str, block_size: u32) -> Result<(), RouterError> {
        if self.numbers.contains_key(name) {
            return Err(RouterError::KnownReplica(name.to_owned()));
        }
        if block_size == 0 {
            return Err(RouterError::EmptyBlock {
                replica: name.to_owned(),
            });
        }
        match self.models.get(model) {
            Some(known) if known.block_size != block_size => Err(RouterError::ModelBlockSize {
                replica: name.to_owned(),
                model: model.to_owned(),
                expected: known.block_size,
                found: block_size,
            }),
            _ => Ok(()),
        }
    }

    /// Adds a replica under a number that nobody has.
    pub fn add(&mut self, id: ReplicaId, name: &str, model: &str, block_size: u32) {
        self.numbers.insert(name.to_owned(), id);
        if self.replicas.len() <= id as usize {
            self.replicas.resize_with(id as usize + 1, || None);
        }
        self.replicas[id as usize] = Some(Replica {
            name: name.to_owned(),
            name_hash: SipHasher13::new().hash(name.as_bytes()),
            model: model.to_owned(),
            block_size,
            eligible: false,
            doubted: false,
            breaker: Breaker::default(),
            position: Position::default(),
            report: LoadReport::default(),
        });
        let model = self.models.entry(model.to_owned()).or_insert(Model {
            block_size,
            members: ReplicaSet::default(),
        });
        model.members.insert(id);
    }

    /// Forgets a replica, and its model with the last one; its number, if it was known.
    pub fn remove(&mut self, name: &str) -> Option<ReplicaId> {
        let id = self.numbers.remove(name)?;
        let replica = self.replicas[id as usize].take()?;
        if let Some(model) = self.models.get_mut(&replica.model) {
            model.members.remove(id);
            if model.members.is_empty() {
                self.models.remove(&replica.model);
            }
        }
        Some(id)
    }

    /// Its number.
    pub fn find(&self, name: &str) -> Result<ReplicaId, RouterError> {
        let found = self.numbers.get(name).copied();
        found.ok_or_else(|| RouterError::UnknownReplica(name.to_owned()))
    }

    /// The replica of a number, None after its removal.
    pub fn get(&self, id: ReplicaId) -> Option<&Replica> {
        self.replicas.get(id as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, id: ReplicaId) -> Option<&mut Replica> {
        self.replicas.get_mut(id as usize)?.as_mut()
    }

    /// The replica of a name, to change, with its number.
    pub fn find_mut(&mut self, name: &str) -> Result<(ReplicaId, &mut Replica), RouterError> {
        let id = self.find(name)?;
        let replica = self.replicas[id as usize].as_mut();
        let replica = replica.ok_or_else(|| RouterError::UnknownReplica(name.to_owned()))?;
        Ok((id, replica))
    }

    pub fn model(&self, name: &str) -> Option<&Model> {
        self.models.get(name)
    }
}
