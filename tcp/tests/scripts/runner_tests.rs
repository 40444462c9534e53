//! Tests of the runner itself: a script that expects something else fails, and the failure shows the
//! line, the expectation and what the stack did.

use libtest_mimic::{Failed, Trial};

use crate::parse::Script;
use crate::run::run;

/// Scripts that are wrong, each with the name of its test and the words that its failure must have.
const WRONG: &[(&str, &str, &[&str])] = &[
    (
        "an expectation of other numbers shows both segments",
        "begin accepted\n< PSH ACK seq 1:101 ack 1\n+0.5ms > ACK seq 1 ack 102",
        &["line 4", "> ACK seq 1 ack 102", "got: > ACK seq 1 ack 101", "differs in: ack"],
    ),
    (
        "a frame that is too early fails",
        "begin accepted\n< ACK seq 1:101 ack 1\n+1ms > ACK seq 1 ack 101",
        &["line 4", "at 1.500000 ms instead of 2.000000 ms: > ACK seq 1 ack 101"],
    ),
    (
        "a frame that is too late fails",
        "begin accepted\n< ACK seq 1:101 ack 1\n+0.4ms > ACK seq 1 ack 101",
        &["line 4", "the stack has sent nothing until 1.400000 ms"],
    ),
    (
        "a tolerance is not wider than it says",
        "begin accepted\n< ACK seq 1:101 ack 1\n+0.3ms~0.19ms > ACK seq 1 ack 101",
        &["line 4", "the stack has sent nothing until 1.490000 ms"],
    ),
    (
        "a frame that the script does not expect fails before the next line",
        "begin accepted\nsend 10\nsend 10\n> PSH ACK seq 11:21 ack 1",
        &["line 4", "does not expect: > PSH ACK seq 1:11 ack 1"],
    ),
    (
        "a frame while time passes fails",
        "begin accepted\n< ACK seq 1:101 ack 1\n+1ms",
        &["line 4", "does not expect: > ACK seq 1 ack 101", "(at 1.500000 ms)"],
    ),
    (
        "a frame at the end of the script fails",
        "begin accepted\nsend 10",
        &["at the end", "does not expect: > PSH ACK seq 1:11 ack 1"],
    ),
    (
        "an event that the script does not expect fails",
        "begin accepted\n< RST seq 1",
        &["at the end", "does not expect: event reset"],
    ),
    (
        "an event of another name fails",
        "begin accepted\n< RST seq 1\nevent closed",
        &["line 4", "`event closed`", "got: event reset"],
    ),
    (
        "an event that does not come fails",
        "begin accepted\n+1s event timed-out",
        &["line 3", "the stack has reported nothing until 1001.000000 ms"],
    ),
    (
        "a segment of a burst that lacks fails",
        "begin accepted\nsend 2000\n> PSH ACK seq 1:3001 ack 1 by 1000",
        &["line 4", "expected: > ACK seq 1001:2001 ack 1", "got: > PSH ACK seq 1001:2001 ack 1"],
    ),
    (
        "a burst that ends early fails",
        "begin accepted\nsend 1000\n> PSH ACK seq 1:1001 ack 1\n> PSH ACK seq 1001:2001 ack 1",
        &["line 5", "the stack has sent nothing until 1.000000 ms"],
    ),
    (
        "control bits are compared exactly",
        "begin accepted\nsend 10\n> ACK seq 1:11 ack 1",
        &["line 4", "differs in: control bits"],
    ),
    (
        "a window is compared where the script names it",
        "begin accepted\nsend 10\n> PSH ACK seq 1:11 ack 1 win 5",
        &["line 4", "differs in: win"],
    ),
    (
        "a SACK option that the script does not name fails",
        "begin accepted\n< ACK seq 1001:2001 ack 1\n> ACK seq 1 ack 1",
        &["line 4", "got: > ACK seq 1 ack 1 win 65535 sack 1001:2001", "differs in: sack"],
    ),
    (
        "a timestamp that was not agreed fails",
        "begin accepted\nsend 10\n> PSH ACK seq 1:11 ack 1 ts",
        &["line 4", "differs in: timestamps"],
    ),
    (
        "a codepoint of ECN is compared",
        "begin accepted\nsend 10\n> PSH ACK seq 1:11 ack 1 ect0",
        &["line 4", "differs in: codepoint"],
    ),
    (
        "options of a SYN are compared exactly",
        "connect\n> SYN seq 0 mss own wscale 4 ts",
        &["line 3", "> SYN seq 0 mss own wscale 4 ts *:*", "differs in: wscale, sack permitted"],
    ),
    ("a state is compared", "begin accepted\nstate CloseWait", &["line 3", "got: Established"]),
    ("a counter is compared", "begin accepted\ncounter challenge_acks 1", &["line 3", "got: 0"]),
    (
        "a counter that does not exist fails",
        "begin accepted\ncounter wonders 1",
        &["line 3", "no such counter"],
    ),
    (
        "a failure shows the frames before it",
        "begin accepted\n< RST seq 9",
        &["at the end", "0.000000 ms < SYN seq 0", "1.000000 ms < RST seq 9"],
    ),
    ("an unknown command fails", "begin accepted\nhope", &["line 3", "unknown command"]),
];

/// Scripts that cannot be read, and the words of the reason.
const UNREADABLE: &[(&str, &str)] = &[
    ("begin accepted", "1: the first line is no `# RFC N section S: rule`"),
    ("# RFC 9293 3.4: nothing", "1: the script does nothing"),
    ("# RFC 9293 3.4: x\n< ACK ack 1", "2: `seq` is missing"),
    ("# RFC 9293 3.4: x\n< ACK seq 1", "2: `ack` goes with ACK"),
    ("# RFC 9293 3.4: x\n< RST seq 1 ack 1", "2: `ack` goes with ACK"),
    ("# RFC 9293 3.4: x\n< seq 1", "2: a segment begins with its control bits"),
    ("# RFC 9293 3.4: x\n> ACK seq 9:1 ack 1", "2: `9:1` ends before it begins"),
    ("# RFC 9293 3.4: x\n> ACK seq 1 ack 1 tos 3", "2: unexpected `tos`"),
    ("# RFC 9293 3.4: x\n+1 listen", "2: `1` is no time"),
    ("# RFC 9293 3.4: x\n+1s~1ms listen", "2: only an expectation has a tolerance"),
    ("# RFC 9293 3.4: x\nlisten\nset mss 500", "3: settings come first"),
];

/// Scripts that are right, one for each part of the language that `README.md` describes.
const RIGHT: &[(&str, &str)] = &[
    (
        "a burst of acknowledgments and of segments",
        "begin accepted\nsend 5000\n> PSH ACK seq 1:5001 ack 1 by 1000\n\
         < ACK seq 1 ack 1001..5001 by 1000\nstat in-flight 0\n\
         < PSH ACK seq 1:4001 ack 5001 by 1000\n> ACK seq 5001 ack 4001\nreceived 4000",
    ),
    (
        "a tolerance around a time",
        "begin accepted\n< ACK seq 1:101 ack 1\n+0.4ms~0.1ms > ACK seq 1 ack 101",
    ),
    ("a question and an answer", "< ask\n> answer\n< echo 20\n> echo 20"),
];

/// Returns the tests.
pub fn all() -> Vec<Trial> {
    let mut all = Vec::new();
    for (name, text, words) in WRONG {
        all.push(Trial::test(format!("runner/{name}"), move || fails(text, words)));
    }
    all.push(Trial::test("runner/scripts that cannot be read name their line", unreadable));
    for (name, text) in RIGHT {
        all.push(Trial::test(format!("runner/{name}"), move || passes(text)));
    }
    all
}

fn script(text: &str) -> Result<Script, String> {
    Script::parse(&format!("# RFC 9293 section 3: a test of the runner\n{text}"))
}

fn fails(text: &str, words: &[&str]) -> Result<(), Failed> {
    for ipv6 in [false, true] {
        let Err(error) = run(&script(text)?, ipv6) else {
            return Err("the script passed".into());
        };
        if let Some(missing) = words.iter().find(|w| !error.contains(**w)) {
            return Err(format!("no `{missing}` in:\n{error}").into());
        }
    }
    Ok(())
}

fn passes(text: &str) -> Result<(), Failed> {
    let script = script(text)?;
    for ipv6 in [false, true] {
        run(&script, ipv6)?;
    }
    Ok(())
}

fn unreadable() -> Result<(), Failed> {
    for (text, words) in UNREADABLE {
        match Script::parse(text) {
            Err(error) if error.contains(words) => {}
            other => return Err(format!("`{text}`: {:?}", other.map(|s| s.rule)).into()),
        }
    }
    Ok(())
}
