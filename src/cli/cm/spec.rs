//! Parses the listeners and connections of the command line.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use heddle::connection::DEFAULT_READ_DEPTH;
use heddle::units::Span;

pub(super) const LISTEN_HELP: &str = "Where to listen, and the answer: accept or reject, with \
    ,private=TEXT ,ird=N ,ord=N ,delay=T (the answer waits) ,end=T (it is ended so long after it is \
    established). May be given several times";

pub(super) const CONNECT_HELP: &str = "Whom to connect to, with ,private=TEXT ,ird=N ,ord=N \
    ,timeout=T (10s) ,end=T (ended so long after it is established; without it the peer does). One \
    after the other; may be given several times";

/// A listener and its answer, as parsed from `--listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listen {
    pub(super) addr: SocketAddr,
    pub(super) accept: bool,
    pub(super) options: Options,
}

/// A connection to make, as parsed from `--connect`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) addr: SocketAddr,
    pub(super) options: Options,
}

/// The options that both have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) private: String,
    pub(super) ird: u16,
    pub(super) ord: u16,
    pub(super) delay: Duration,
    pub(super) end: Option<Duration>,
    pub(super) timeout: Duration,
}

impl Options {
    fn parse<'a>(words: impl Iterator<Item = &'a str>, known: &[&str]) -> Result<Options, String> {
        let mut o = Options {
            private: String::new(),
            ird: DEFAULT_READ_DEPTH,
            ord: DEFAULT_READ_DEPTH,
            delay: Duration::ZERO,
            end: None,
            timeout: Duration::from_secs(10),
        };
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            if !known.contains(&name) {
                return Err(format!("'{name}' is none of {}", known.join(", ")));
            }
            let span = || value.parse::<Span>().map(|s| s.0).map_err(|e| format!("{name}: {e}"));
            let depth = || value.parse().map_err(|_| format!("{name}: '{value}' is no number"));
            match name {
                "private" => value.clone_into(&mut o.private),
                "ird" => o.ird = depth()?,
                "ord" => o.ord = depth()?,
                "delay" => o.delay = span()?,
                "end" => o.end = Some(span()?),
                _ => o.timeout = span()?,
            }
        }
        Ok(o)
    }
}

fn addr(s: &str) -> Result<SocketAddr, String> {
    s.parse().map_err(|_| format!("'{s}' is not ADDR:PORT"))
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(s: &str) -> Result<Listen, String> {
        let (at, answer) = s.split_once('=').ok_or("expected ADDR:PORT=accept or =reject")?;
        let mut words = answer.split(',');
        let accept = match words.next() {
            Some("accept") => true,
            Some("reject") => false,
            other => {
                let other = other.unwrap_or_default();
                return Err(format!("'{other}' is neither accept nor reject"));
            }
        };
        let known: &[&str] =
            if accept { &["private", "ird", "ord", "delay", "end"] } else { &["private", "delay"] };
        Ok(Listen { addr: addr(at)?, accept, options: Options::parse(words, known)? })
    }
}

impl FromStr for Ask {
    type Err = String;

    fn from_str(s: &str) -> Result<Ask, String> {
        let mut words = s.split(',');
        let addr = addr(words.next().unwrap_or_default())?;
        let known = ["private", "ird", "ord", "timeout", "end"];
        Ok(Ask { addr, options: Options::parse(words, &known)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_listener_and_connect_specs_are_parsed() {
        let l: Listen = "10.0.0.1:7=accept,private=a b,ird=3,delay=1500ms".parse().unwrap();
        assert_eq!((l.addr, l.accept), ("10.0.0.1:7".parse().unwrap(), true));
        let Options { private, ird, ord, delay, end, .. } = l.options;
        assert_eq!((private.as_str(), ird, ord, end), ("a b", 3, DEFAULT_READ_DEPTH, None));
        assert_eq!(delay, Duration::from_millis(1500));
        let l: Listen = "10.0.0.1:7=reject".parse().unwrap();
        assert!(!l.accept && l.options.private.is_empty());
        let a: Ask = "10.0.0.2:9,end=0s,timeout=3s,ord=0".parse().unwrap();
        let Options { ord, end, timeout, .. } = a.options;
        assert_eq!((ord, end), (0, Some(Duration::ZERO)));
        assert_eq!(timeout, Duration::from_secs(3));
    }

    #[test]
    fn test_malformed_cm_specs_are_refused() {
        for bad in [
            "",
            "10.0.0.1:7",
            "10.0.0.1:7=",
            "10.0.0.1:7=accepts",
            "10.0.0.1=accept",
            "10.0.0.1:7=accept,ird=x",
            "10.0.0.1:7=accept,ird=65536",
            "10.0.0.1:7=accept,timeout=1s",
            "10.0.0.1:7=reject,ird=1",
            "10.0.0.1:7=accept,delay=1",
            "10.0.0.1:7=accept,",
        ] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
        for bad in ["", "10.0.0.1", "10.0.0.1:7=accept", "10.0.0.1:7,delay=1s", "10.0.0.1:7,x"] {
            assert!(bad.parse::<Ask>().is_err(), "{bad}");
        }
    }
}
