//! The settings of one direction, as text: `delay=5ms,loss=1%,rate=100Mbit/s,queue=64K`.

use core::str::FromStr;
use core::time::Duration;
use std::collections::BTreeSet;

use heddle_base::units::{ByteRate, Probability, Size, Span};

use crate::frame::Codepoint;

/// The longest delay, jitter or time of reordering.
const LONGEST: Duration = Duration::from_secs(60);
/// The smallest MTU of IPv4's path MTU discovery that hosts take, and the largest IP packet.
const MTUS: core::ops::RangeInclusive<u32> = 68..=65535;
/// The time that `reorder` holds a frame back without a time of its own.
const HELD_BACK: Duration = Duration::from_millis(1);

const KNOWN: &str = "loss, burst, delay, jitter, unordered, reorder, dup, corrupt, rate, queue, \
                     mark, ce, syn-ecn, drop-ecn-syn, clear-ace, bleach, mtu, silent";

/// Loss in bursts, by the model of Gilbert and Elliott: the link is good or bad, and every frame may
/// change which.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// The probability that a good link turns bad with a frame.
    pub enter: f64,
    /// The probability that a bad link turns good with a frame.
    pub leave: f64,
    /// The share of frames that a bad link loses.
    pub loss: f64,
}

/// Frames that later frames overtake.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reorder {
    /// The share of frames that the link holds back.
    pub share: f64,
    /// How long the link holds a frame back.
    pub by: Duration,
}

/// The impairments of one direction. The default impairs nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The share of frames lost at random; with `burst`, while the link is good.
    pub loss: f64,
    /// Loss in bursts.
    pub burst: Option<Burst>,
    /// The time that each frame takes.
    pub delay: Duration,
    /// The longest time, chosen anew for each frame, that comes on top of `delay`.
    pub jitter: Duration,
    /// True if jitter may change the order of frames.
    pub unordered: bool,
    /// Frames that the link holds back.
    pub reorder: Option<Reorder>,
    /// The share of frames delivered twice.
    pub dup: f64,
    /// The share of frames in which one bit behind the Ethernet header is wrong.
    pub corrupt: f64,
    /// Bytes of frames in a second.
    pub rate: Option<u64>,
    /// Bytes that may wait for the rate. A frame that finds no room is dropped.
    pub queue: Option<u64>,
    /// Bytes waiting from which on the link marks frames that can take a mark (ECN).
    pub mark: Option<u64>,
    /// The share of frames that get a mark at random, if they can take one.
    pub ce: f64,
    /// The ECN field that SYNs and SYN-ACKs get, whatever they had.
    pub syn_ecn: Option<Codepoint>,
    /// True if the link drops SYNs that ask for ECN.
    pub drop_ecn_syn: bool,
    /// True if the link clears TCP's flags of ECN (AE, CWR, ECE) in all segments but SYNs.
    pub clear_ace: bool,
    /// True if the link clears the ECN field of every packet, marks of its own among them.
    pub bleach: bool,
    /// Bytes of the longest IP packet.
    pub mtu: Option<u32>,
    /// True if the link answers a longer packet with nothing; otherwise an ICMP error reports the
    /// MTU to its sender.
    pub silent: bool,
}

/// Why a text is not the settings of a direction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// No setting has this name.
    #[error("'{0}' is no setting; there are {KNOWN}")]
    Unknown(String),
    /// A setting stands there twice.
    #[error("{0} is set twice")]
    Twice(String),
    /// A value is missing, or does not fit.
    #[error("{key}: {why}")]
    Value {
        /// The name of the setting.
        key: String,
        /// The reason why the value does not fit.
        why: String,
    },
    /// A setting has no effect without another one.
    #[error("{key} needs {other}")]
    Needs {
        /// The setting that is there.
        key: &'static str,
        /// The setting that is missing.
        other: &'static str,
    },
}

impl FromStr for Settings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Settings, SettingsError> {
        let (mut settings, mut seen) = (Settings::default(), BTreeSet::new());
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (part, None),
            };
            settings.set(key, value)?;
            if !seen.insert(key) {
                return Err(SettingsError::Twice(key.to_owned()));
            }
        }
        settings.check()
    }
}

impl Settings {
    fn set(&mut self, key: &str, value: Option<&str>) -> Result<(), SettingsError> {
        let wrong = |why: String| SettingsError::Value { key: key.to_owned(), why };
        let flag = match key {
            "unordered" => Some(&mut self.unordered),
            "silent" => Some(&mut self.silent),
            "drop-ecn-syn" => Some(&mut self.drop_ecn_syn),
            "clear-ace" => Some(&mut self.clear_ace),
            "bleach" => Some(&mut self.bleach),
            _ => None,
        };
        if let Some(flag) = flag {
            *flag = true;
            return if value.is_some() { Err(wrong("takes no value".into())) } else { Ok(()) };
        }
        let text = value.unwrap_or_default();
        match key {
            "loss" => self.loss = share(text).map_err(wrong)?,
            "burst" => self.burst = Some(burst(text).map_err(wrong)?),
            "delay" => self.delay = time(text).map_err(wrong)?,
            "jitter" => self.jitter = time(text).map_err(wrong)?,
            "reorder" => self.reorder = Some(reorder(text).map_err(wrong)?),
            "dup" => self.dup = share(text).map_err(wrong)?,
            "corrupt" => self.corrupt = share(text).map_err(wrong)?,
            "rate" => self.rate = Some(parsed::<ByteRate>(text).map_err(wrong)?.0),
            "queue" => self.queue = Some(bytes(text).map_err(wrong)?),
            "mark" => self.mark = Some(bytes(text).map_err(wrong)?),
            "ce" => self.ce = share(text).map_err(wrong)?,
            "syn-ecn" => self.syn_ecn = Some(codepoint(text).map_err(wrong)?),
            "mtu" => self.mtu = Some(mtu(text).map_err(wrong)?),
            _ => return Err(SettingsError::Unknown(key.to_owned())),
        }
        Ok(())
    }

    /// Refuses settings that would silently do nothing.
    fn check(self) -> Result<Settings, SettingsError> {
        let needs = |key, other| Err(SettingsError::Needs { key, other });
        if self.rate.is_none() && self.queue.is_some() {
            return needs("queue", "rate");
        }
        if self.rate.is_none() && self.mark.is_some() {
            return needs("mark", "rate");
        }
        if self.jitter.is_zero() && self.unordered {
            return needs("unordered", "jitter");
        }
        if self.mtu.is_none() && self.silent {
            return needs("silent", "mtu");
        }
        Ok(self)
    }
}

fn parsed<T: FromStr<Err: ToString>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e: T::Err| e.to_string())
}

fn share(text: &str) -> Result<f64, String> {
    parsed::<Probability>(text).map(Probability::get)
}

fn time(text: &str) -> Result<Duration, String> {
    match parsed::<Span>(text)?.0 {
        t if t <= LONGEST => Ok(t),
        _ => Err(format!("'{text}' is more than {} s", LONGEST.as_secs())),
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    match parsed::<Size>(text)?.0 {
        0 => Err("0 bytes hold no frame".into()),
        n => Ok(n.into()),
    }
}

fn mtu(text: &str) -> Result<u32, String> {
    match parsed::<Size>(text)?.0 {
        n if MTUS.contains(&n) => Ok(n),
        n => Err(format!("{n} is not from {} to {}", MTUS.start(), MTUS.end())),
    }
}

fn codepoint(text: &str) -> Result<Codepoint, String> {
    Ok(match text {
        "not-ect" => Codepoint::NotEct,
        "ect0" => Codepoint::Ect0,
        "ect1" => Codepoint::Ect1,
        "ce" => Codepoint::Ce,
        _ => return Err(format!("'{text}' is not not-ect, ect0, ect1 or ce")),
    })
}

fn burst(text: &str) -> Result<Burst, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let (enter, leave, loss) = match parts[..] {
        [enter, leave] => (enter, leave, "1"),
        [enter, leave, loss] => (enter, leave, loss),
        _ => {
            return Err(format!(
                "'{text}' is not ENTER:LEAVE or ENTER:LEAVE:LOSS, each a share of frames"
            ));
        }
    };
    let burst = Burst { enter: share(enter)?, leave: share(leave)?, loss: share(loss)? };
    if burst.leave == 0.0 {
        return Err("a bad link would never turn good again".into());
    }
    Ok(burst)
}

fn reorder(text: &str) -> Result<Reorder, String> {
    let (part, by) = match text.split_once(':') {
        Some((part, by)) => (part, time(by)?),
        None => (text, HELD_BACK),
    };
    Ok(Reorder { share: share(part)?, by })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(text: &str) -> String {
        text.parse::<Settings>().unwrap_err().to_string()
    }

    #[test]
    fn test_settings_take_every_key() {
        let all = "loss=1%,burst=0.01:0.25:0.5,delay=5ms,jitter=100us,unordered,reorder=2%:3ms,\
                   dup=0.5,corrupt=1,rate=100Mbit/s,queue=64K,mark=30K,ce=5%,syn-ecn=ect1,\
                   drop-ecn-syn,clear-ace,bleach,mtu=1400,silent";
        let want = Settings {
            loss: 0.01,
            burst: Some(Burst { enter: 0.01, leave: 0.25, loss: 0.5 }),
            delay: Duration::from_millis(5),
            jitter: Duration::from_micros(100),
            unordered: true,
            reorder: Some(Reorder { share: 0.02, by: Duration::from_millis(3) }),
            dup: 0.5,
            corrupt: 1.0,
            rate: Some(12_500_000),
            queue: Some(65536),
            mark: Some(30720),
            ce: 0.05,
            syn_ecn: Some(Codepoint::Ect1),
            drop_ecn_syn: true,
            clear_ace: true,
            bleach: true,
            mtu: Some(1400),
            silent: true,
        };
        assert_eq!(all.parse(), Ok(want));
        assert_eq!("".parse(), Ok(Settings::default()));
    }

    #[test]
    fn test_settings_fill_in_what_a_value_leaves_out() {
        let s: Settings = "burst=1%:50%,reorder=1%".parse().unwrap();
        assert_eq!(s.burst, Some(Burst { enter: 0.01, leave: 0.5, loss: 1.0 }));
        assert_eq!(s.reorder, Some(Reorder { share: 0.01, by: HELD_BACK }));
    }

    #[test]
    fn test_settings_refuse_what_they_cannot_mean() {
        for (text, why) in [
            ("lose=1%", "'lose' is no setting; there are loss, burst"),
            ("loss=1%,loss=2%", "loss is set twice"),
            ("silent,silent,mtu=99", "silent is set twice"),
            ("loss", "loss: '' is not a share"),
            ("loss=1.1", "loss: '1.1' is not a share"),
            ("loss=-1%", "loss: '-1%' is not a share"),
            ("loss=NaN", "loss: 'NaN' is not a share"),
            ("delay=5", "delay: '5' is not a time"),
            ("delay=61s", "delay: '61s' is more than 60 s"),
            ("jitter=61s", "jitter: '61s' is more than 60 s"),
            ("reorder=1%:61s", "reorder: '61s' is more than 60 s"),
            ("rate=100", "rate: '100' is not a rate"),
            ("rate=1Gbit/s,queue=0", "queue: 0 bytes hold no frame"),
            ("rate=1Gbit/s,mark=0", "mark: 0 bytes hold no frame"),
            ("queue=64K", "queue needs rate"),
            ("mark=64K", "mark needs rate"),
            ("unordered", "unordered needs jitter"),
            ("silent", "silent needs mtu"),
            ("mtu=67", "mtu: 67 is not from 68 to 65535"),
            ("mtu=64K", "mtu: 65536 is not from 68 to 65535"),
            ("ce=1.5", "ce: '1.5' is not a share"),
            ("syn-ecn=1", "syn-ecn: '1' is not not-ect, ect0, ect1 or ce"),
            ("bleach=1", "bleach: takes no value"),
            ("jitter=1ms,unordered=1", "unordered: takes no value"),
            ("burst=1%", "burst: '1%' is not ENTER:LEAVE"),
            ("burst=1%:0", "burst: a bad link would never"),
            ("burst=1%:1:1:1", "burst: '1%:1:1:1' is not ENTER:LEAVE"),
        ] {
            let said = refused(text);
            assert!(said.starts_with(why), "{text}: {said}");
        }
        assert!("delay=60s,mtu=68".parse::<Settings>().is_ok());
    }

    proptest! {
        #[test]
        fn test_settings_never_panic(text in "[a-z=,:0-9.%]{0,40}") {
            let _ = text.parse::<Settings>();
        }
    }
}
