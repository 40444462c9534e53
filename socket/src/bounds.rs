//! Bounds of the numbers in requests, in one table for each set of requests.
//!
//! A number in a request either is a name that the server looks up, or says how much or how long
//! something is to be. This module bounds numbers of the second kind before a request is read into
//! its type: the server cuts a time to the longest that it grants, and refuses a size that it
//! cannot provide. A test walks every request and fails for a number that has no line in the table
//! ([`unbounded`]).

use core::time::Duration;

use serde_json::{Value, json};

use crate::document::{Fault, FaultKind};

/// The rule that a number has to meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The number names an object or a position: the server looks it up, or compares it.
    Name,
    /// The number is a byte of the client's data.
    Byte,
    /// The server cuts the number to this range.
    Clamp(u64, u64),
    /// The server refuses a number outside this range.
    Within(u64, u64),
    /// A time, as serde writes a [`Duration`]; the server cuts a longer time to this one.
    AtMost(Duration),
}

/// A line of the table: the request, the path of the number in its arguments, and the rule for the
/// number. Dots divide the parts of `at`; `[]` stands for each element of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// `op` of the request; empty for every request.
    pub op: &'static str,
    /// Path of the number in `args`.
    pub at: &'static str,
    /// The rule for the number.
    pub rule: Rule,
}

/// Requests whose numbers have bounds.
pub trait Bounded {
    /// The table, with a line for each number.
    const BOUNDS: &'static [Bound];
}

/// Returns a line of the table.
pub const fn bound(op: &'static str, at: &'static str, rule: Rule) -> Bound {
    Bound { op, at, rule }
}

/// Cuts the numbers of a request to their bounds.
///
/// # Errors
/// [`FaultKind::Invalid`] if a number is out of range and its rule does not allow a cut.
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

/// Returns the paths of the numbers of a request that have no line in `bounds`.
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
            // A `Duration` is built only from `most`: building one from a client's numbers could
            // overflow.
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

/// Calls `each` with the path of every number; a time counts as one number.
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

/// Returns the operations that requests of type `R` know, as serde lists them.
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
    fn test_call_numbers_are_clamped_or_refused_at_their_bounds() {
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
    fn test_checker_finds_nested_numbers_that_have_no_bound() {
        let call = json!({ "op": "ask", "args": {
            "of": 1, "more": 2, "data": [3], "how": { "time": { "secs": 1, "nanos": 2 }, "x": [{ "y": 4 }] }
        } });
        assert_eq!(unbounded(&BOUNDS, &call), ["ask how.x[].y", "ask more"]);
        assert_eq!(unbounded(&BOUNDS, &json!({ "op": "tell", "args": { "of": 1 } })), ["tell of"]);
        assert_eq!(unbounded(&BOUNDS, &json!({ "op": "ask" })), [""; 0]);
    }
}
