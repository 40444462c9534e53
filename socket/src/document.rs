//! Requests, answers and events, as far as they are the same for all kinds of client.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bounds::{self, Bounded};

/// The only protocol version. A server refuses others ([`FaultKind::Version`]) and names its own.
pub const VERSION: u32 = 1;

/// The fields that every request begins with.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct Head {
    /// The version that the request is written in.
    pub v: u32,
    /// The client's number for the request.
    pub id: u64,
}

/// A request as the client writes it. `R` is an enumeration with `#[serde(tag = "op", content =
/// "args")]`; its arguments are structures with `#[serde(deny_unknown_fields)]`, so that the server
/// refuses a misspelt argument.
#[derive(Clone, Debug, Serialize)]
pub struct Call<'a, R> {
    /// Always [`VERSION`].
    pub v: u32,
    /// The client's number for the request.
    pub id: u64,
    /// The operation and its arguments.
    #[serde(flatten)]
    pub request: &'a R,
}

/// An answer: `ok` or `error`, never both.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// Always [`VERSION`].
    pub v: u32,
    /// The number of the request; 0 if the server could not read a number.
    pub id: u64,
    /// Number of file descriptors that come with the answer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fds: u32,
    /// The result of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Value>,
    /// Why the server did not carry out the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// A document that the server sends without a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event<E> {
    /// Always [`VERSION`].
    pub v: u32,
    /// The event itself.
    pub event: E,
}

/// Why the server did not carry out a request. The request has changed nothing then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    /// The reason, for programs.
    pub kind: FaultKind,
    /// The reason, for people: one line.
    pub text: String,
}

/// Reasons of a [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The line is no request.
    Malformed,
    /// The request is written in another version.
    Version,
    /// The client may not make this request.
    Denied,
    /// No object has that name or number.
    NotFound,
    /// A value is out of range or makes no sense.
    Invalid,
    /// The server cannot carry out the request now; the same request may succeed later.
    Busy,
    /// A quota of the client is used up.
    Quota,
    /// The server is unable to carry out the request: it has a defect, or is about to end.
    Failed,
}

impl Fault {
    /// Returns a fault of this kind; line breaks in `text` become spaces.
    pub fn new(kind: FaultKind, text: impl Into<String>) -> Fault {
        Fault { kind, text: text.into().replace(['\n', '\r'], " ") }
    }
}

impl Answer {
    /// Returns the answer to request `id`. A value that cannot be written as JSON is a defect of
    /// the server, and the answer says so.
    pub fn ok(id: u64, ok: &impl Serialize) -> Answer {
        match serde_json::to_value(ok) {
            Ok(ok) => Answer { v: VERSION, id, ok: Some(ok), ..Answer::default() },
            Err(e) => Answer::fault(id, Fault::new(FaultKind::Failed, e.to_string())),
        }
    }

    /// Returns the refusal of request `id`.
    pub fn fault(id: u64, fault: Fault) -> Answer {
        Answer { v: VERSION, id, error: Some(fault), ..Answer::default() }
    }

    /// Returns the result. An answer with neither `ok` nor `error` only confirms that the server
    /// carried out the request.
    ///
    /// # Errors
    /// The server's fault, or [`FaultKind::Malformed`] when the answer is not of type `T`.
    pub fn into_result<T: DeserializeOwned>(self) -> Result<T, Fault> {
        if let Some(fault) = self.error {
            return Err(fault);
        }
        serde_json::from_value(self.ok.unwrap_or(Value::Null))
            .map_err(|e| Fault::new(FaultKind::Malformed, format!("the answer: {e}")))
    }
}

/// Returns a document as the line that travels, including its line end.
pub fn to_line(document: &impl Serialize) -> Vec<u8> {
    // Writing fails only for a map whose keys are not strings, and no document has such a map.
    let mut line = serde_json::to_vec(document).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Reads the fields that every request begins with, then the request with its numbers cut to their
/// bounds.
///
/// # Errors
/// The refusal, which the caller sends.
pub fn read_call<R: DeserializeOwned + Bounded>(line: &[u8]) -> Result<(u64, R), Box<Answer>> {
    let malformed = |id, e: serde_json::Error| {
        Box::new(Answer::fault(id, Fault::new(FaultKind::Malformed, e.to_string())))
    };
    let head: Head = serde_json::from_slice(line).map_err(|e| malformed(0, e))?;
    if head.v != VERSION {
        let text = format!("version {} is not spoken here, only {VERSION}", head.v);
        return Err(Box::new(Answer::fault(head.id, Fault::new(FaultKind::Version, text))));
    }
    let mut call = serde_json::from_slice(line).map_err(|e| malformed(head.id, e))?;
    bounds::apply(R::BOUNDS, &mut call).map_err(|fault| Box::new(Answer::fault(head.id, fault)))?;
    let request = serde_json::from_value(call).map_err(|e| malformed(head.id, e))?;
    Ok((head.id, request))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "op", content = "args", rename_all = "kebab-case")]
    enum Ask {
        Status,
        ConnKill(ConnKill),
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ConnKill {
        conn: u64,
    }

    impl Bounded for Ask {
        const BOUNDS: &'static [bounds::Bound] = &[];
    }

    #[test]
    fn test_call_is_written_as_one_line_and_parses_back() {
        let line =
            to_line(&Call { v: VERSION, id: 7, request: &Ask::ConnKill(ConnKill { conn: 9 }) });
        assert_eq!(line, b"{\"v\":1,\"id\":7,\"op\":\"conn-kill\",\"args\":{\"conn\":9}}\n");
        // The fields of the envelope do not count as unknown fields of the request.
        let (id, ask): (u64, Ask) = read_call(b"{\"v\":1,\"id\":3,\"op\":\"status\"}").unwrap();
        assert_eq!((id, ask), (3, Ask::Status));
        assert_eq!(read_call::<Ask>(&line).unwrap(), (7, Ask::ConnKill(ConnKill { conn: 9 })));
    }

    #[test]
    fn test_malformed_call_is_refused_with_its_id_and_kind_of_fault() {
        let refusal = |line: &[u8]| {
            let a = read_call::<Ask>(line).unwrap_err();
            (a.id, a.error.unwrap().kind)
        };
        for (line, id, kind) in [
            (&b"{"[..], 0, FaultKind::Malformed),
            (b"", 0, FaultKind::Malformed),
            (b"\xff\xfe", 0, FaultKind::Malformed),
            (b"17", 0, FaultKind::Malformed),
            (
                b"{\"v\":1,\"id\":6,\"op\":\"conn-kill\",\"args\":{\"conn\":1,\"x\":1}}",
                6,
                FaultKind::Malformed,
            ),
            (b"{\"v\":2,\"id\":5,\"op\":\"later\"}", 5, FaultKind::Version),
            (b"{\"v\":1,\"id\":6,\"op\":\"dance\"}", 6, FaultKind::Malformed),
            (b"{\"v\":1,\"id\":6,\"op\":\"conn-kill\"}", 6, FaultKind::Malformed),
            (
                b"{\"v\":1,\"id\":6,\"op\":\"conn-kill\",\"args\":{\"conn\":-1}}",
                6,
                FaultKind::Malformed,
            ),
            (b"{\"v\":1,\"id\":-6,\"op\":\"status\"}", 0, FaultKind::Malformed),
        ] {
            assert_eq!(refusal(line), (id, kind), "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn test_answer_converts_back_to_its_result_or_fault() {
        let back = |a: &Answer| serde_json::from_slice::<Answer>(&to_line(a)).unwrap();
        assert_eq!(back(&Answer::ok(1, &[1, 2])).into_result::<Vec<u8>>(), Ok(vec![1, 2]));
        assert_eq!(back(&Answer::ok(1, &())).into_result::<()>(), Ok(()));
        let fault = Fault::new(FaultKind::NotFound, "no\nsuch");
        assert_eq!(fault.text, "no such");
        assert_eq!(back(&Answer::fault(1, fault.clone())).into_result::<u8>(), Err(fault));
        let wrong = Answer::ok(1, &"text").into_result::<u8>().unwrap_err();
        assert_eq!(wrong.kind, FaultKind::Malformed);
    }
}
