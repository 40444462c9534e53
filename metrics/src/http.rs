//! HTTP/1.1: `/metrics` and `/healthz`, and nothing else.
//!
//! The server bounds the cost of its clients: a number of connections, one request each, its header
//! within a deadline and the whole request within another. If a client comes while all places are
//! taken, it replaces the client that has been there longest, after that client has had its
//! [`Limits::share`]. Slow clients thus keep no client out for longer than that.

use core::convert::Infallible;
use core::time::Duration;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE as TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, sleep_until, timeout};

use crate::expose;
use crate::sample::{Sample, Source};

/// `Content-Type` of `/metrics`.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const PLAIN: &str = "text/plain; charset=utf-8";

/// Bytes of a request's header: the least that hyper accepts.
const HEADER: usize = 8192;

/// The pause between attempts when the process has no descriptors for more clients.
const PAUSE: Duration = Duration::from_millis(100);

/// Limits on the cost of clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most connections at a time.
    pub connections: usize,
    /// The most time until the header of the request has arrived.
    pub header: Duration,
    /// The most time until the client has taken the whole answer.
    pub whole: Duration,
    /// How long a client keeps its place when others wait for one.
    pub share: Duration,
    /// The most time until there is a sample. The sample reports workers that do not answer in this
    /// time as silent.
    pub sample: Duration,
    /// How long a sample serves further requests.
    pub fresh: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 64,
            header: Duration::from_secs(2),
            whole: Duration::from_secs(10),
            share: Duration::from_secs(2),
            sample: Duration::from_secs(1),
            fresh: Duration::from_millis(250),
        }
    }
}

heddle_base::counters! {
    /// The counters of the metrics server.
    pub struct HttpCounters {
        /// HTTP requests for metrics and health, and for unknown paths.
        requests,
        /// HTTP clients cut off to make room: they had used their share of time, and others waited.
        clients_evicted,
        /// HTTP clients cut off because they took too long, for a request or an answer.
        clients_slow,
        /// HTTP clients cut off because their bytes were no request, or had too long a header.
        clients_malformed,
    }
}

/// Answers requests at `listener` until the caller drops the future, and with it every connection.
/// Call this function within a [`LocalSet`](tokio::task::LocalSet).
pub async fn serve<S: Source + 'static>(listener: TcpListener, source: Rc<S>) -> Infallible {
    serve_with(listener, source, Limits::default()).await
}

/// Does the work of [`serve`] with other limits.
pub async fn serve_with<S: Source + 'static>(
    listener: TcpListener,
    source: Rc<S>,
    limits: Limits,
) -> Infallible {
    let counters = RefCell::default();
    let cache = Rc::new(Cache { source, limits, counters, last: Mutex::default() });
    let permits = Arc::new(Semaphore::new(limits.connections.max(1)));
    let mut tasks = JoinSet::new();
    // The time at which each client came, the oldest first.
    let mut there: VecDeque<(tokio::time::Instant, AbortHandle)> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let permit = loop {
                    while tasks.try_join_next().is_some() {}
                    there.retain(|(_, task)| !task.is_finished());
                    let over = there.front().map(|(since, _)| *since + limits.share);
                    tokio::select! {
                        biased;
                        // The semaphore is never closed.
                        permit = Arc::clone(&permits).acquire_owned() => break permit,
                        () = sleep_until(over.unwrap_or_else(tokio::time::Instant::now)) => {
                            if let Some((_, oldest)) = there.pop_front() {
                                oldest.abort();
                                cache.counters.borrow_mut().clients_evicted += 1;
                            }
                            tokio::task::yield_now().await;
                        }
                    }
                };
                let cache = Rc::clone(&cache);
                let task = tasks.spawn_local(async move {
                    let _permit = permit;
                    connection(stream, cache).await;
                });
                there.push_back((tokio::time::Instant::now(), task));
            }
            Err(e) => {
                tracing::warn!("metrics: nobody can connect: {e}");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn connection<S: Source>(stream: TcpStream, cache: Rc<Cache<S>>) {
    let limits = cache.limits;
    let service = service_fn(|request| {
        let cache = Rc::clone(&cache);
        cache.counters.borrow_mut().requests += 1;
        async move { Ok::<_, Infallible>(answer(&request, &cache).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(HEADER)
        .keep_alive(false);
    let talk = http.serve_connection(TokioIo::new(stream), service);
    match timeout(limits.whole, talk).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => {
            let mut counters = cache.counters.borrow_mut();
            counters.clients_slow += u64::from(e.is_timeout());
            counters.clients_malformed += u64::from(e.is_parse());
            tracing::debug!("metrics: a client: {e}");
        }
        Err(_) => {
            cache.counters.borrow_mut().clients_slow += 1;
            tracing::debug!("metrics: a client takes too long");
        }
    }
}

type Answer = Response<Full<Bytes>>;

fn say(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

async fn answer<S: Source>(request: &Request<Incoming>, cache: &Cache<S>) -> Answer {
    let path = request.uri().path();
    if !matches!(path, "/metrics" | "/healthz") {
        let there = "There are /metrics and /healthz.\n";
        return say(StatusCode::NOT_FOUND, PLAIN, there);
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut no = say(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "GET or HEAD.\n");
        no.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return no;
    }
    match (cache.take().await, path) {
        (Ok(taken), "/metrics") => say(StatusCode::OK, CONTENT_TYPE, taken.text.clone()),
        (Ok(taken), _) => match &taken.health {
            Ok(how) => say(StatusCode::OK, PLAIN, format!("{how}\n")),
            Err(why) => say(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{why}\n")),
        },
        (Err(why), _) => say(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{why}\n")),
    }
}

/// The answers made from a sample.
#[derive(Debug)]
struct Scrape {
    text: Bytes,
    /// The text of a healthy answer, or the reason why the RNIC is not healthy.
    health: Result<String, String>,
}

impl Scrape {
    fn of(sample: &Sample) -> Scrape {
        let silent = |(n, w): (usize, &crate::WorkerSample)| {
            (!w.up).then(|| format!("worker {n} of port {} does not answer", w.port))
        };
        let silent: Vec<String> = sample.workers.iter().enumerate().filter_map(silent).collect();
        // The inner port carries no frame of another host, so it is no way to reach the RNIC.
        let linked: Vec<_> = sample.ports.iter().filter(|p| !p.inner).collect();
        let down: Vec<&str> = linked.iter().filter(|p| !p.up).map(|p| p.name.as_str()).collect();
        let health = match &silent[..] {
            [] if sample.workers.is_empty() => Err("there is no worker".to_owned()),
            // No host can reach the RNIC; with another port up, some host can.
            [] if !down.is_empty() && down.len() == linked.len() => {
                Err(format!("no link is up: {}", down.join(", ")))
            }
            [] if !down.is_empty() => {
                Ok(format!("ok, but the link of {} is down", down.join(", ")))
            }
            [] => Ok("ok".to_owned()),
            all => Err(all.join("; ")),
        };
        Scrape { text: expose(sample).into(), health }
    }
}

type Outcome = Result<Rc<Scrape>, String>;

/// The last sample. Only one request at a time takes the next sample, and the others wait for it.
#[derive(Debug)]
struct Cache<S> {
    source: Rc<S>,
    limits: Limits,
    counters: RefCell<HttpCounters>,
    last: Mutex<Option<(Instant, Outcome)>>,
}

impl<S: Source> Cache<S> {
    /// Returns a sample, or why there is none. A failure serves other requests too; otherwise they
    /// would wait one after the other for a sample that does not come.
    async fn take(&self) -> Outcome {
        let mut last = self.last.lock().await;
        if let Some((at, outcome)) = &*last
            && at.elapsed() < self.limits.fresh
        {
            return outcome.clone();
        }
        let outcome = match timeout(self.limits.sample, self.source.sample()).await {
            Ok(sample) => sample.map(|s| {
                let http = *self.counters.borrow();
                Rc::new(Scrape::of(&Sample { http, ..s }))
            }),
            Err(_) => Err(format!("no answer within {} ms", self.limits.sample.as_millis())),
        };
        *last = Some((Instant::now(), outcome.clone()));
        outcome
    }
}
