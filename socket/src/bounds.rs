//! Bounds of the numbers in requests, all in one table for each set of requests.
//!
//! A number of a request is a name that is looked up, or it says how much or how long something is to
//! be. The latter is bounded here, before the request is read into its type: a time that a client asks
//! for is cut to what the server grants, a size that the server cannot have is refused. A test walks
//! every request and fails for a number that has no line in the table ([`unbounded`]).

use core::time::Duration;

use serde_json::{Value, json};

use crate::document::{Fault, FaultKind};

/// What holds for one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It names something, or says where: it is looked up, or compared.
    Name,
    /// A byte of somebody's data.
    Byte,
    /// What is beyond these is cut to them.
    Clamp(u64, u64),
    /// What is beyond these is refused.
    Within(u64, u64),
    /// A time, as serde writes a [`Duration`]; a longer one is cut.
    AtMost(Duration),
}

/// The line of a number: the request, where the number is in its arguments, and what holds for it. The
/// parts of `at` are divided by dots; `[]` stands for each element of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// `op` of the request; any where it is empty.
    pub op: &'static str,
    /// Where.
    pub at: &'static str,
    /// What holds.
    pub rule: Rule,
}

/// Requests whose numbers have bounds.
pub trait Bounded {
    /// The table.
    const BOUNDS: &'static [Bound];
}

/// A line.
pub const fn bound(op: &'static str, at: &'static str, rule: Rule) -> Bound {
    Bound { op, at, rule }
}

/// Cuts the numbers of a request to what `bounds` say.
///
/// # Errors
/// That one of them is beyond what can be cut.
pub fn apply(bounds: &[Bound], call: &mut Value) -> Result<(), Fault> {
    let Some(op) = call.get("op").and_then(Value::as_str).map(str::to_owned) else { return Ok(()) };
    let Some(args) = call.get_mut("args") else { return Ok(()) };
    let its = bounds.iter().filter(|b| b.op == op || b.op.is_empty());
    for b in its.filter(|b| !matches!(b.rule, Rule::Name | Rule::Byte)) {
        let Some(value) = find(args, b.at) else { continue };
        cut(b.rule, value).map_err(|(n, least, most)| {
            let text = format!("{}: {n} is not between {least} and {most}", b.at);
            Fault::new(FaultKind::Invalid, text)
        })?;
    }
    Ok(())
}

/// The numbers of a request that have no line in `bounds`, by where they are.
pub fn unbounded(bounds: &[Bound], call: &Value) -> Vec<String> {
    let op = call.get("op").and_then(Value::as_str).unwrap_or_default();
    let mut found = Vec::new();
    walk(call.get("args").unwrap_or(&Value::Null), String::new(), &mut |at| {
        let covers = |b: &&Bound| (b.op == op || b.op.is_empty()) && b.at == at;
        if !bounds.iter().any(|b| covers(&b)) {
            found.push(format!("{op} {at}"));
        }
    });
    found
}

fn find<'a>(args: &'a mut Value, at: &str) -> Option<&'a mut Value> {
    at.split('.').try_fold(args, |value, part| value.get_mut(part))
}

fn cut(rule: Rule, value: &mut Value) -> Result<(), (u64, u64, u64)> {
    match (rule, value.as_u64()) {
        (Rule::Clamp(least, most), Some(n)) => *value = json!(n.clamp(least, most)),
        (Rule::Within(least, most), Some(n)) if !(least..=most).contains(&n) => {
            return Err((n, least, most));
        }
        (Rule::AtMost(most), None) => {
            let secs = value.get("secs").and_then(Value::as_u64);
            let nanos = value.get("nanos").and_then(Value::as_u64).unwrap_or(0);
            // Not built as a `Duration` before it is known to fit one.
            if secs.is_some_and(|s| {
                s > most.as_secs() || s == most.as_secs() && nanos > most.subsec_nanos().into()
            }) {
                *value = json!({ "secs": most.as_secs(), "nanos": most.subsec_nanos() });
            }
        }
        _ => {}
    }
    Ok(())
}

/// Every number, and every time as one of them.
fn walk(value: &Value, at: String, each: &mut impl FnMut(&str)) {
    let below = |part: &str| if at.is_empty() { part.to_owned() } else { format!("{at}.{part}") };
    match value {
        Value::Number(_) => each(&at),
        Value::Array(all) => all.iter().for_each(|v| walk(v, format!("{at}[]"), each)),
        Value::Object(all) if all.contains_key("secs") && all.contains_key("nanos") => each(&at),
        Value::Object(all) => all.iter().for_each(|(k, v)| walk(v, below(k), each)),
        _ => {}
    }
}

/// Operations that requests of type `R` know, as serde lists them.
pub fn operations<R: serde::de::DeserializeOwned>() -> Vec<String> {
    let error = serde_json::from_value::<R>(json!({ "op": "" })).err();
    let text = error.map(|e| e.to_string()).unwrap_or_default();
    text.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const BOUNDS: [Bound; 5] = [
        bound("ask", "of", Rule::Name),
        bound("ask", "count", Rule::Clamp(1, 9)),
        bound("ask", "how.size", Rule::Within(2, 8)),
        bound("ask", "how.time", Rule::AtMost(Duration::from_millis(1500))),
        bound("", "data[]", Rule::Byte),
    ];

    fn applied(args: Value) -> Result<Value, Fault> {
        let mut call = json!({ "v": 1, "op": "ask", "args": args });
        apply(&BOUNDS, &mut call)?;
        Ok(call["args"].clone())
    }

    #[test]
    fn test_numbers_are_cut_or_refused_at_their_bounds_and_names_are_not() {
        for (n, cut) in [(0, 1), (1, 1), (9, 9), (10, 9), (u64::MAX, 9)] {
            assert_eq!(applied(json!({ "count": n })).unwrap(), json!({ "count": cut }));
        }
        for (n, ok) in [(1, false), (2, true), (8, true), (9, false), (u64::MAX, false)] {
            assert_eq!(applied(json!({ "how": { "size": n } })).is_ok(), ok, "{n}");
        }
        let most = json!({ "secs": 1, "nanos": 500_000_000 });
        for (secs, nanos) in [(1, 500_000_001), (2, 0), (1 << 40, 0), (u64::MAX, 999_999_999)] {
            let got = applied(json!({ "how": { "time": { "secs": secs, "nanos": nanos } } }));
            assert_eq!(got.unwrap()["how"]["time"], most);
        }
        for kept in [json!({ "secs": 0, "nanos": 7 }), most, Value::Null] {
            let got = applied(json!({ "how": { "time": kept } })).unwrap();
            assert_eq!(got["how"]["time"], kept);
        }
        let name = json!({ "of": u64::MAX, "data": [1, 2], "other": 5 });
        assert_eq!(applied(name.clone()).unwrap(), name);
    }

    #[test]
    fn test_numbers_without_a_line_are_found_wherever_they_are() {
        let call = json!({ "op": "ask", "args": {
            "of": 1, "more": 2, "data": [3], "how": { "time": { "secs": 1, "nanos": 2 }, "x": [{ "y": 4 }] }
        } });
        assert_eq!(unbounded(&BOUNDS, &call), ["ask how.x[].y", "ask more"]);
        assert_eq!(unbounded(&BOUNDS, &json!({ "op": "tell", "args": { "of": 1 } })), ["tell of"]);
        assert_eq!(unbounded(&BOUNDS, &json!({ "op": "ask" })), [""; 0]);
    }
}
