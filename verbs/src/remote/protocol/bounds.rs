//! The bounds of the numbers in an application's requests: the server cuts a number to its bounds,
//! or refuses the request.
//!
//! An application's account limits how much of each resource it may have in all; this table limits
//! a single request. A time that an application chooses is a time for which it occupies a place in
//! the RNIC.

use core::time::Duration;

use heddle_socket::bounds::{Bound, Bounded, Rule, bound};

use super::Request;
use crate::device::{MAX_CQ_DEPTH, MAX_DEPTH};
use crate::limits::DeviceLimits;

/// Longest time that the server waits for a peer that has connected and requested nothing.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time that an application may let a peer wait for its answer.
pub const ACCEPT_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest time that a peer may take to its first FPDU.
pub const FIRST_FPDU_TIMEOUT: Duration = Duration::from_secs(3600);
/// Longest time that a connection may take to come about.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(600);

/// Bytes of one request, and entries of a queue: the server cuts a number to the first impossible
/// one. The code that carries the request out then refuses it, and has taken the descriptor that
/// came with it.
const SIZE: Rule = Rule::Clamp(0, DeviceLimits::MOST.max_mr_size + 1);
const DEPTH: Rule = Rule::Clamp(0, MAX_DEPTH as u64 + 1);
const CQ_DEPTH: Rule = Rule::Clamp(0, MAX_CQ_DEPTH as u64 + 1);
const PIECES: Rule = Rule::Within(0, u16::MAX as u64);
const READS: Rule = Rule::Within(0, u16::MAX as u64);
const RIGHTS: Rule = Rule::Within(0, u8::MAX as u64);
const SHARE: Rule = Rule::Clamp(0, 1 << 16);

impl Bounded for Request {
    const BOUNDS: &'static [Bound] = &[
        bound("device-open", "memory", SIZE),
        bound("device-open", "queues", SIZE),
        // The session looks names up in its tables, so any number is allowed.
        bound("", "pd", Rule::Name),
        bound("", "qp", Rule::Name),
        bound("", "cq", Rule::Name),
        bound("", "srq", Rule::Name),
        bound("", "send_cq", Rule::Name),
        bound("", "recv_cq", Rule::Name),
        bound("", "id", Rule::Name),
        bound("", "mr", Rule::Name),
        bound("", "region", Rule::Name),
        bound("", "listener", Rule::Name),
        bound("", "bound", Rule::Name),
        bound("", "conn", Rule::Name),
        // The client's own numbers for its threads.
        bound("", "waker", Rule::Name),
        bound("destroy-cq", "off", Rule::Name),
        bound("destroy-cq", "words", Rule::Name),
        bound("destroy-srq", "off", Rule::Name),
        bound("destroy-srq", "words", Rule::Name),
        bound("create-cq", "depth", CQ_DEPTH),
        bound("resize-cq", "depth", CQ_DEPTH),
        bound("create-srq", "depth", DEPTH),
        bound("", "sq_depth", DEPTH),
        bound("", "rq_depth", DEPTH),
        bound("", "max_sge", PIECES),
        bound("", "max_send_sge", PIECES),
        bound("", "max_recv_sge", PIECES),
        bound("", "max_inline", PIECES),
        bound("", "len", SIZE),
        bound("", "access", RIGHTS),
        // Tagged offsets may be any number.
        bound("", "to", Rule::Name),
        bound("", "at", Rule::Name),
        bound("register-mr", "off", SIZE),
        bound("listen", "params.backlog", Rule::Clamp(1, 4096)),
        bound("listen", "params.request_timeout", Rule::AtMost(REQUEST_TIMEOUT)),
        bound("listen", "params.accept_timeout", Rule::AtMost(ACCEPT_TIMEOUT)),
        bound("listen", "params.first_fpdu_timeout", Rule::AtMost(FIRST_FPDU_TIMEOUT)),
        bound("listen", "params.rtr_timeout", Rule::AtMost(REQUEST_TIMEOUT)),
        bound("listen", "params.max_startups_per_peer", SHARE),
        bound("listen", "params.max_conns_per_peer", SHARE),
        // Sets of options, which their types check.
        bound("listen", "params.protocol.Mpa.revision", Rule::Name),
        bound("listen", "params.protocol.Mpa.rtr", Rule::Name),
        bound("connect", "protocol.Mpa.revision", Rule::Name),
        bound("connect", "protocol.Mpa.rtr", Rule::Name),
        bound("connect", "timeout", Rule::AtMost(CONNECT_TIMEOUT)),
        bound("", "ird", READS),
        bound("", "ord", READS),
        bound("reject", "needs_ord", READS),
        bound("", "private_data[]", Rule::Byte),
        bound("taken", "count", Rule::Clamp(0, 1 << 16)),
    ];
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use heddle_socket::bounds::{operations, unbounded};
    use heddle_socket::document::read_call;
    use heddle_types::{ListenParams, Protocol};
    use serde_json::{Value, json};

    use super::*;

    /// Returns one request of each sort, with every argument that it can have.
    fn samples() -> Vec<Value> {
        let ms = |n| Some(Duration::from_millis(n));
        let params = ListenParams {
            first_fpdu_timeout: ms(1),
            max_startups_per_peer: Some(1),
            max_conns_per_peer: Some(1),
            ..ListenParams::default()
        };
        let (protocol, t) = (Protocol::default(), Duration::from_secs(1));
        let id = json!({ "id": 1 });
        let block = json!({ "off": 1, "words": 1 });
        let qp = json!({ "qp": 1 });
        let conn = json!({
            "conn": 1, "qp": 1, "ird": 1, "ord": 1, "private_data": [1]
        });
        [
            ("device-open", json!({ "memory": 1, "queues": 1, "name": "" })),
            ("create-pd", Value::Null),
            ("dealloc-pd", json!({ "pd": 1 })),
            ("create-cq", json!({ "depth": 1, "waker": 1 })),
            ("resize-cq", json!({ "cq": 1, "depth": 1 })),
            ("create-srq", json!({ "pd": 1, "depth": 1, "max_sge": 1, "waker": 1 })),
            (
                "create-qp",
                json!({
                    "pd": 1, "send_cq": 1, "recv_cq": 1, "srq": 1, "sq_depth": 1, "rq_depth": 1,
                    "max_send_sge": 1, "max_recv_sge": 1, "max_inline": 1
                }),
            ),
            ("reset-qp", qp.clone()),
            ("destroy-cq", block.clone()),
            ("destroy-srq", block),
            ("destroy-qp", qp),
            ("alloc-mr", json!({ "pd": 1, "len": 1, "access": 1, "to": 1, "qp": 1 })),
            ("reserve", json!({ "len": 1 })),
            ("register-reserved", json!({ "id": 1, "pd": 1, "access": 1 })),
            ("destroy-reserved", id.clone()),
            ("add-region", json!({ "len": 1, "sparse": true })),
            (
                "register-mr",
                json!({ "pd": 1, "region": 1, "off": 1, "len": 1, "access": 1, "to": 1, "qp": 1 }),
            ),
            ("destroy-region", id.clone()),
            ("deregister-mr", id.clone()),
            ("destroy-mr", id.clone()),
            ("alloc-fast", json!({ "pd": 1, "qp": 1, "len": 1 })),
            ("alloc-window", json!({ "pd": 1, "qp": 1 })),
            ("bind-window", json!({ "id": 1, "mr": 1, "at": 1, "len": 1, "to": 1, "access": 1 })),
            ("unbind-window", id.clone()),
            ("destroy-stag", id),
            ("usage", json!({ "pd": 1 })),
            ("listen", json!({ "addr": "10.0.0.1:1", "params": params, "bound": 1 })),
            ("unlisten", json!({ "listener": 1 })),
            (
                "connect",
                json!({
                    "remote": "10.0.0.1:1", "local": null, "qp": 1, "protocol": protocol, "ird": 1,
                    "ord": 1, "private_data": [1], "timeout": t
                }),
            ),
            ("accept", conn),
            ("reject", json!({ "conn": 1, "private_data": [1], "needs_ord": 1 })),
            ("disconnect", json!({ "conn": 1 })),
            ("taken", json!({ "count": 1 })),
            ("close", Value::Null),
            ("reserve-addr", json!({ "addr": "10.0.0.1:0" })),
            ("destroy-reserved-addr", json!({ "id": 1 })),
            ("fail-qp", json!({ "qp": 1 })),
            ("ports", Value::Null),
            ("watch", Value::Null),
        ]
        .map(|(op, args)| json!({ "v": 1, "id": 1, "op": op, "args": args }))
        .into()
    }

    fn read(call: &Value) -> Result<Request, Box<heddle_socket::Answer>> {
        read_call(call.to_string().as_bytes()).map(|(_, request)| request)
    }

    #[test]
    fn test_every_number_of_every_request_is_bounded() {
        let sampled: Vec<_> =
            samples().iter().map(|c| c["op"].as_str().unwrap().to_owned()).collect();
        assert_eq!(sampled, operations::<Request>(), "a sample of each, in their order");
        for call in samples() {
            read(&call).unwrap_or_else(|e| panic!("{call}: {e:?}"));
            assert_eq!(unbounded(Request::BOUNDS, &call), [""; 0]);
        }
    }

    /// Sets each time to the longest that a document can express, and each number that is cut to
    /// the largest.
    #[test]
    fn test_excessive_times_and_counts_are_clamped_to_their_bounds() {
        let most = json!({ "secs": u64::MAX, "nanos": 999_999_999 });
        for b in Request::BOUNDS {
            let Some(mut call) = samples().into_iter().find(|c| c["op"] == b.op) else { continue };
            let at = format!("/args/{}", b.at.replace('.', "/"));
            let Some(value) = call.pointer_mut(&at) else { continue };
            *value = if matches!(b.rule, Rule::AtMost(_)) { most.clone() } else { json!(u64::MAX) };
            let request = match (b.rule, read(&call)) {
                (Rule::AtMost(_) | Rule::Clamp(..), Ok(request)) => request,
                (Rule::Within(..), Err(_)) | (Rule::Name | Rule::Byte, _) => continue,
                (rule, read) => panic!("{call}: {rule:?} {read:?}"),
            };
            let written = serde_json::to_value(&request).unwrap();
            let cut = written.pointer(&at).unwrap();
            match b.rule {
                Rule::Clamp(_, most) => assert_eq!(cut, &json!(most), "{}", b.at),
                Rule::AtMost(most) => assert_eq!(cut, &json!(most), "{}", b.at),
                _ => {}
            }
        }
    }
}
