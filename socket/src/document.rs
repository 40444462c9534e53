//! Requests, answers and events, as far as they are the same for everybody.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bounds::{self, Bounded};

/// The only version there is. A server refuses others ([`FaultKind::Version`]) and names its own.
pub const VERSION: u32 = 1;

/// What every request begins with, whatever it asks for.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct Head {
    /// The version it is written in.
    pub v: u32,
    /// The asker's number for it.
    pub id: u64,
}

/// A request as it is written. `R` is an enumeration with `#[serde(tag = "op", content = "args")]`;
/// its arguments are structures with `#[serde(deny_unknown_fields)]`, so that a misspelt one is refused.
#[derive(Clone, Debug, Serialize)]
pub struct Call<'a, R> {
    /// [`VERSION`].
    pub v: u32,
    /// The asker's number for it.
    pub id: u64,
    /// What is asked for.
    #[serde(flatten)]
    pub request: &'a R,
}

/// An answer: `ok` or `error`, never both.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// [`VERSION`].
    pub v: u32,
    /// The number of the request; 0 where it had none that could be read.
    pub id: u64,
    /// File descriptors that come with it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fds: u32,
    /// What was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Value>,
    /// Why it was not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Something told without having been asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event<E> {
    /// [`VERSION`].
    pub v: u32,
    /// What has happened.
    pub event: E,
}

/// Why a request was not carried out. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    /// For programs.
    pub kind: FaultKind,
    /// For people: one line.
    pub text: String,
}

/// Kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The line is no request.
    Malformed,
    /// It is written in another version.
    Version,
    /// The asker may not.
    Denied,
    /// There is nothing of that name or number.
    NotFound,
    /// A value is out of range or makes no sense.
    Invalid,
    /// It cannot be done at this moment; the same request may succeed later.
    Busy,
    /// A quota of the asker is used up.
    Quota,
    /// The server cannot: a defect, or it is about to end.
    Failed,
}

impl Fault {
    /// A fault of this kind; line breaks become spaces.
    pub fn new(kind: FaultKind, text: impl Into<String>) -> Fault {
        Fault { kind, text: text.into().replace(['\n', '\r'], " ") }
    }
}

impl Answer {
    /// The answer to request `id`. What cannot be written as JSON is a defect, and said.
    pub fn ok(id: u64, ok: &impl Serialize) -> Answer {
        match serde_json::to_value(ok) {
            Ok(ok) => Answer { v: VERSION, id, ok: Some(ok), ..Answer::default() },
            Err(e) => Answer::fault(id, Fault::new(FaultKind::Failed, e.to_string())),
        }
    }

    /// The refusal of request `id`.
    pub fn fault(id: u64, fault: Fault) -> Answer {
        Answer { v: VERSION, id, error: Some(fault), ..Answer::default() }
    }

    /// What was answered. An answer that says neither is one that only says that it was done.
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

/// A document as the line it travels as, its end included.
pub fn to_line(document: &impl Serialize) -> Vec<u8> {
    // A map whose keys are no strings cannot be written, and no document has one.
    let mut line = serde_json::to_vec(document).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Reads what every request begins with, then the request, its numbers cut to its bounds.
///
/// # Errors
/// The refusal to send.
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
    fn test_a_call_is_one_line_and_reads_back() {
        let line =
            to_line(&Call { v: VERSION, id: 7, request: &Ask::ConnKill(ConnKill { conn: 9 }) });
        assert_eq!(line, b"{\"v\":1,\"id\":7,\"op\":\"conn-kill\",\"args\":{\"conn\":9}}\n");
        // The envelope's own fields are none of the request's.
        let (id, ask): (u64, Ask) = read_call(b"{\"v\":1,\"id\":3,\"op\":\"status\"}").unwrap();
        assert_eq!((id, ask), (3, Ask::Status));
        assert_eq!(read_call::<Ask>(&line).unwrap(), (7, Ask::ConnKill(ConnKill { conn: 9 })));
    }

    #[test]
    fn test_what_is_no_call_is_refused_and_the_refusal_says_what_it_answers() {
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
    fn test_answers_are_results() {
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
