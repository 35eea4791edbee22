//! One request from its first byte to its status: read, admitted, picked, forwarded, tried elsewhere.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::request::Parts;
use http::{HeaderMap, Request as HttpRequest};
use tokio::time::sleep;

use super::bodies::{Bodies, Came, Prompt};
use super::caller::{Caller, End};
use super::course::{Course, REQUEST_ID};
use super::forward::{Attempt, Fault, forward};
use super::limits::{MAX_HEADER_BYTES, MAX_METADATA_BYTES};
use super::memory::Held;
use super::message::{Message, read_message};
use super::metadata;
use super::replicas::GENERATE;
use super::request::{PREFIX_BYTES, Request};
use super::shard::Shard;
use super::status::{Code, GRPC_STATUS, Refusal};
use super::texts::tokenise;
use super::timeout;
use super::work::Lane;
use crate::error::TextError;
use crate::pick::{Pick, Router};
use crate::text::Namespace;

/// Bound of the pause before the second retry, doubled with each one more up to the most; the first is at once.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// What is read between two calls' turns: as much takes less than a millisecond.
const SMALL_BYTES: usize = 128 << 10;

/// How often Python holds a request that it reads, as bytes and as an object.
const READINGS: usize = 2;

/// Serves one call of Generate.
pub(crate) async fn generate(
    shard: Rc<Shard>,
    request: HttpRequest<RecvStream>,
    respond: SendResponse<Bytes>,
) {
    let (head, body) = request.into_parts();
    let left = head.headers.get("grpc-timeout").and_then(timeout::parse);
    let mut caller = Caller::new(respond, left);
    let trace = shard.trace(&head.headers);
    let mut course = Course::new(shard.plane.unnamed.clone(), trace);
    let most = shard.plane.max_open_calls.load(Relaxed);
    let ended = match shard.plane.open_calls.open(most) {
        Ok(_open) => serve(&shard, &head, body, &mut caller, &mut course).await,
        Err(refusal) => Err(refusal.into()),
    };
    let code = ended.as_ref().map_or_else(End::code, |_| Code::Ok);
    course.counters.ended(code);
    shard.plane.traces.end(course.trace, code);
    // The last step, as a status may wait behind what its client does not read.
    match ended {
        Ok(trailers) => caller.finish(trailers),
        Err(End::Refused(refusal)) => {
            let mut trailers = refusal.into_headers();
            if let Some(id) = course.request_id {
                trailers.insert(REQUEST_ID, id);
            }
            caller.finish(trailers);
        }
        Err(End::Gone(_)) => {}
    }
}

async fn serve(
    shard: &Shard,
    head: &Parts,
    body: RecvStream,
    caller: &mut Caller,
    course: &mut Course,
) -> Result<HeaderMap, End> {
    let header_bytes = metadata::whole_bytes(&head.headers);
    if header_bytes > MAX_HEADER_BYTES {
        let message = format!(
            "the headers have {header_bytes} bytes, at most {MAX_HEADER_BYTES} are allowed"
        );
        return Err(Refusal::new(Code::ResourceExhausted, message).into());
    }
    let mut memory = shard.plane.memory.hold();
    let message = caller
        .wait(read_message(&head.headers, body, &mut memory))
        .await??;
    let Come {
        framed,
        request,
        held: mut memory,
    } = read(shard, message, memory, caller).await?;
    let made_id = if request.id.is_empty() {
        shard.request_id()
    } else {
        String::new()
    };
    course.is_called(if made_id.is_empty() {
        request.cut_id()
    } else {
        &made_id
    });
    let admission = &shard.plane.admission;
    let tenant = (request.cache_salt.as_str(), request.extra_key.as_str());
    course.trace.begin("admission");
    let _admitted = admission.admit(caller, request.priority, tenant).await?;
    course.trace.end();
    shard.plane.retry_budget.add();
    let metadata_bytes = metadata::size_bytes(&head.headers);
    if metadata_bytes > MAX_METADATA_BYTES {
        let message = format!(
            "metadata has {metadata_bytes} bytes, at most {MAX_METADATA_BYTES} are allowed"
        );
        return Err(Refusal::new(Code::InvalidArgument, message).into());
    }
    let (came, request, prompt) =
        read_prompt(shard, framed, request, &mut memory, caller, course).await?;
    course.trace.asks(&prompt.model, prompt.num_tokens);
    let bodies = Bodies::new(came, request, prompt, made_id, memory);
    try_replicas(shard, head, bodies, caller, course).await
}

/// A message that was read, and what both take of memory.
struct Come {
    framed: Vec<u8>,
    request: Request,
    held: Held,
}

/// Unpacks and decodes; what is large beside the shard, whose other calls go on meanwhile.
async fn read(
    shard: &Shard,
    mut message: Message,
    mut held: Held,
    caller: &mut Caller,
) -> Result<Come, End> {
    if message.unpack(SMALL_BYTES, &mut held)? {
        return Ok(decode(message.into_framed(), held)?);
    }
    let reading = shard.plane.work.run(Lane::Bodies, move || {
        message.unpack(usize::MAX, &mut held)?;
        decode(message.into_framed(), held)
    });
    let read = caller.wait(reading).await?.map_err(|_| router_ends())?;
    Ok(read?)
}

fn decode(framed: Vec<u8>, mut held: Held) -> Result<Come, Refusal> {
    held.add(framed.len())?;
    let request = Request::read(&framed[PREFIX_BYTES..]).map_err(|_| {
        let message = format!("what came is no request message of {GENERATE}");
        Refusal::new(Code::InvalidArgument, message)
    })?;
    request.check_counts()?;
    held.set(framed.capacity() + request.prompt_bytes())?;
    Ok(Come {
        framed,
        request,
        held,
    })
}

/// What the prompt is: token ids, texts and chats are read here, and by the control plane what has media, is to be
/// refused, or is of a model whose tokenizer is not here.
async fn read_prompt(
    shard: &Shard,
    framed: Vec<u8>,
    mut request: Request,
    held: &mut Held,
    caller: &mut Caller,
    course: &mut Course,
) -> Result<(Came, Request, Prompt), End> {
    if request.is_plain
        && let Some(model) = shard.plane.replicas.model(&request.model)
    {
        course.counters = model.counters;
        let prompt = Prompt {
            model: model.name,
            num_tokens: request.num_ids,
            tokens: Vec::new(),
            tokenizer_digest: None,
        };
        return Ok((Came::Own(framed), request, prompt));
    }
    course.trace.begin("tokenise");
    let framed = Bytes::from(framed);
    if let Some(words) = request.words.take()
        && let Some(model) = shard.plane.replicas.model(&request.model)
        && let Some(text) = shard.plane.texts.of(&model.name)
    {
        course.counters = model.counters;
        let namespace = Namespace {
            extra_key: &request.extra_key,
            cache_salt: &request.cache_salt,
        };
        let tokens = tokenise(&shard.plane.work, text.codec, words, namespace);
        let tokens = caller.wait(tokens).await?.map_err(|_| router_ends())?;
        let refused = |why: TextError| {
            let code = match why {
                TextError::Panicked => Code::Internal,
                _ => Code::InvalidArgument,
            };
            Refusal::new(code, why.to_string())
        };
        let tokens = tokens.map_err(refused)?;
        held.set(framed.len() + size_of_val(&*tokens))?;
        let prompt = Prompt {
            model: model.name,
            num_tokens: tokens.len(),
            tokens,
            tokenizer_digest: Some(text.digest),
        };
        return Ok((Came::Shared(framed), request, prompt));
    }
    held.add(READINGS * framed.len())?;
    let mut waiting = shard.plane.desk.ask(framed.slice(PREFIX_BYTES..));
    let answer = caller.wait(&mut waiting.answer).await?;
    let reading = answer.unwrap_or_else(|_| Err(router_ends()))?;
    held.set(framed.len() + size_of_val(&*reading.tokens))?;
    course.counters = shard.plane.counters.model(&reading.model);
    let prompt = Prompt {
        model: Arc::from(reading.model),
        num_tokens: reading.tokens.len(),
        tokens: reading.tokens,
        tokenizer_digest: reading.tokenizer_digest,
    };
    drop(waiting);
    Ok((Came::Shared(framed), request, prompt))
}

fn router_ends() -> Refusal {
    Refusal::new(Code::Unavailable, "the router ends")
}

/// A pick whose prompt is in flight until it is dropped.
struct InFlight<'a>(&'a Router, Pick);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.release(self.1.ticket);
    }
}

async fn try_replicas(
    shard: &Shard,
    head: &Parts,
    mut bodies: Bodies,
    caller: &mut Caller,
    course: &mut Course,
) -> Result<HeaderMap, End> {
    let plane = &shard.plane;
    let mut failed: Vec<String> = Vec::new();
    let mut failure = None;
    let mut pause = RETRY_PAUSE;
    while failed.len() <= plane.retries.load(Relaxed) {
        if !failed.is_empty() && !plane.retry_budget.take() {
            break;
        }
        if failed.len() > 1 {
            caller.wait(sleep(pause.mul_f64(shard.uniform()))).await?;
            pause = MAX_RETRY_PAUSE.min(2 * pause);
        }
        let trace = &mut course.trace;
        trace.begin("match");
        let now_s = plane.clock.now_s();
        let picked = bodies.pick(&plane.router, &failed, now_s, &mut || trace.begin("pick"))?;
        trace.end();
        let Some(pick) = picked else {
            break;
        };
        let in_flight = InFlight(&plane.router, pick);
        let pick = &in_flight.1;
        plane.counters.picked(pick.reason);
        if !failed.is_empty() {
            plane.counters.retries.fetch_add(1, Relaxed);
        }
        let result = match plane.replicas.get(&pick.replica) {
            Some(replica) => {
                let prompt_tokens = bodies.prompt.num_tokens as u64;
                let reusable = |tokens| replica.reusable(tokens, prompt_tokens);
                let matched = reusable(pick.matched);
                course.trace.picked(pick, matched, reusable(pick.available));
                let message = bodies.of(&replica)?;
                let attempt = Attempt {
                    shard,
                    replica: &replica,
                    pick,
                    matched,
                    metadata: &head.headers,
                    began_s: plane.clock.now_s(),
                };
                course.trace.forward(&pick.replica);
                let answer = forward(attempt, message, &mut bodies, caller, course).await;
                let code = answer.as_ref().map_or_else(Fault::code, |_| Code::Ok);
                course.trace.forwarded(code);
                answer
            }
            None => Err(Fault::Elsewhere(Refusal::new(
                Code::Unavailable,
                format!("replica {} failed: it left the fleet", pick.replica),
            ))),
        };
        match result {
            Ok(trailers) => return Ok(succeeded(trailers)),
            Err(Fault::End(end)) => return Err(end),
            Err(Fault::Elsewhere(refusal)) => {
                plane.desk.retried(bodies.request_id(), &refusal.message);
                failed.push(pick.replica.clone());
                failure = Some(refusal);
            }
        }
    }
    Err(match failure {
        None => none_eligible(&bodies.prompt.model),
        Some(Refusal { code, message, .. }) => {
            Refusal::new(code, format!("tried {}: {message}", failed.join(", ")))
        }
    }
    .into())
}

fn none_eligible(model: &str) -> Refusal {
    let message = format!("no replica of model '{model}' can take requests now");
    Refusal::new(Code::Unavailable, message)
}

fn succeeded(mut trailers: HeaderMap) -> HeaderMap {
    trailers.insert(GRPC_STATUS, http::HeaderValue::from_static("0"));
    trailers
}
