//! The trace from beginning to end.

use std::ops::ControlFlow;
use std::rc::Rc;

use super::agenda::{Agenda, Event};
use super::dispatcher::Dispatcher;
use super::replica::{Engine, Replica};
use super::trace::Trace;

/// Seconds between two batches of a replica at least, and at most.
const PERIOD_S: f64 = 0.010;
const HEARTBEAT_S: f64 = 1.0;

/// How many requests there are between two reports of progress.
const PROGRESS_REQUESTS: usize = 256;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// By request: seconds from its arrival to its first token.
    pub first_token_s: Vec<f64>,
    /// Of all prompts.
    pub prompt_tokens: u64,
    /// Of them, what replicas had cached.
    pub cached_tokens: u64,
    /// By replica: tokens of prompts that it computed.
    pub prefilled_tokens: Vec<u64>,
    /// By replica: requests that it got.
    pub requests: Vec<u64>,
}

/// Plays a trace on so many replicas, which begin empty. `progress` hears now and then how many requests have come,
/// and can end the simulation.
///
/// # Errors
/// The dispatcher's; or `progress` ended it, which gives None.
pub fn run<D: Dispatcher>(
    trace: &Trace,
    replicas: usize,
    engine: Engine,
    dispatcher: &mut D,
    progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Option<Outcome>, D::Error> {
    let mut play = Play {
        trace,
        replicas: (0..replicas)
            .map(|number| Replica::new(number, engine, trace))
            .collect(),
        publishers: vec![NEVER; replicas],
        agenda: Agenda::default(),
        dispatcher,
        first_token_s: vec![0.0; trace.requests().len()],
        without_answer: trace.requests().len(),
    };
    (0..replicas).for_each(|replica| play.has_news(0.0, replica));
    for (number, request) in trace.requests().iter().enumerate() {
        if number % PROGRESS_REQUESTS == 0 && progress(number).is_break() {
            return Ok(None);
        }
        play.happen_until(request.arrived_s)?;
        play.arrive(number)?;
    }
    play.happen_until(f64::INFINITY)?;
    Ok(Some(play.outcome()))
}

/// When a replica sent its last batch, and when it will send the next one.
#[derive(Clone, Copy, Debug)]
struct Publisher {
    last_s: f64,
    due_s: f64,
}

const NEVER: Publisher = Publisher {
    last_s: f64::NEG_INFINITY,
    due_s: f64::INFINITY,
};

struct Play<'a, D> {
    trace: &'a Trace,
    replicas: Vec<Replica>,
    publishers: Vec<Publisher>,
    agenda: Agenda,
    dispatcher: &'a mut D,
    first_token_s: Vec<f64>,
    /// Requests that have no token yet.
    without_answer: usize,
}

impl<D: Dispatcher> Play<'_, D> {
    fn arrive(&mut self, request: usize) -> Result<(), D::Error> {
        let now_s = self.trace.requests()[request].arrived_s;
        let replica = self
            .dispatcher
            .pick(now_s, request, self.trace, &self.replicas)?;
        self.replicas[replica].accept(request, self.trace);
        self.replicas[replica].go_on(now_s, self.trace, &mut self.agenda);
        self.has_news(now_s, replica);
        Ok(())
    }

    fn happen_until(&mut self, until_s: f64) -> Result<(), D::Error> {
        while let Some((now_s, event)) = self.agenda.next(until_s) {
            match event {
                Event::ChunkEnds { replica } => self.chunk_ends(now_s, replica)?,
                Event::AnswerEnds { replica, request } => {
                    self.replicas[replica].answer_ends();
                    self.dispatcher.ended(request)?;
                    self.has_news(now_s, replica);
                }
                Event::Publishes { replica } => self.publishes(now_s, replica),
                others => self.dispatcher.happens(
                    now_s,
                    others,
                    self.trace,
                    &mut self.replicas,
                    &mut self.agenda,
                )?,
            }
        }
        Ok(())
    }

    fn chunk_ends(&mut self, now_s: f64, replica: usize) -> Result<(), D::Error> {
        let at = &mut self.replicas[replica];
        let Some(computed) = at.chunk_ends(self.trace) else {
            return Ok(());
        };
        if computed.is_last {
            let request = computed.request;
            let prompt = &self.trace.requests()[request];
            self.without_answer -= 1;
            self.first_token_s[request] = now_s - prompt.arrived_s;
            self.dispatcher.first_token(request)?;
            let end_s = now_s + at.answer_s(prompt);
            self.agenda
                .enter(end_s, Event::AnswerEnds { replica, request });
        }
        at.go_on(now_s, self.trace, &mut self.agenda);
        self.has_news(now_s, replica);
        Ok(())
    }

    /// Its next batch is due as soon as batches may follow each other.
    fn has_news(&mut self, now_s: f64, replica: usize) {
        if self.dispatcher.listens() {
            let soonest_s = self.publishers[replica].last_s + PERIOD_S;
            self.publish_at(now_s.max(soonest_s), replica);
        }
    }

    fn publish_at(&mut self, at_s: f64, replica: usize) {
        let publisher = &mut self.publishers[replica];
        if at_s < publisher.due_s {
            publisher.due_s = at_s;
            self.agenda.enter(at_s, Event::Publishes { replica });
        }
    }

    fn publishes(&mut self, now_s: f64, replica: usize) {
        let publisher = &mut self.publishers[replica];
        #[expect(
            clippy::float_cmp,
            reason = "the same number, unless an earlier time was set since"
        )]
        if publisher.due_s != now_s {
            return;
        }
        *publisher = Publisher {
            last_s: now_s,
            ..NEVER
        };
        let batch: Rc<[u8]> = self.replicas[replica].seal(self.trace).into();
        self.dispatcher
            .published(now_s, replica, &batch, &mut self.agenda);
        if self.without_answer > 0 {
            self.publish_at(now_s + HEARTBEAT_S, replica);
        }
    }

    fn outcome(self) -> Outcome {
        let replicas = &self.replicas;
        Outcome {
            first_token_s: self.first_token_s,
            prompt_tokens: self
                .trace
                .requests()
                .iter()
                .map(|each| each.prompt_tokens)
                .sum(),
            cached_tokens: replicas.iter().map(Replica::cached_tokens).sum(),
            prefilled_tokens: replicas.iter().map(Replica::prefilled_tokens).collect(),
            requests: replicas.iter().map(Replica::picked).collect(),
        }
    }
}
