//! Options of the MPA start-up, which several commands share.

use std::str::FromStr;

use clap::ValueEnum;
use heddle::connection::{CrcPolicy, MpaOptions, Revision, Rtr, RtrSet};

use super::Failure;

/// The options of connection requests, and of their answers.
#[derive(Debug, clap::Args)]
pub(crate) struct MpaArgs {
    /// CRC-32C of each FPDU, as MPA has it: requested, or left to the peers [default: on; off
    /// inside an RNIC, where there is no wire]
    #[arg(long, value_enum)]
    crc: Option<Switch>,
    /// MPA revision to request (auto: 2, then 1 if the peer knows no other); a server answers with
    /// no higher revision
    #[arg(long, value_enum, value_name = "1|2|auto", default_value_t = RevisionArg::Two, hide_possible_values = true)]
    mpa: RevisionArg,
    /// Peer-to-peer model of RFC 6581: the messages that a client can begin with, or that a server
    /// takes: some of send,write,read, or none (the client-server model) [default: none; a server
    /// takes all]
    #[arg(long, value_name = "LIST")]
    rtr: Option<RtrArg>,
    /// Request markers in the data that the peer sends
    #[arg(long)]
    markers: bool,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RevisionArg {
    #[value(name = "1")]
    One,
    #[value(name = "2")]
    Two,
    Auto,
}

/// A set of RTR messages, as words between commas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RtrArg(RtrSet);

impl FromStr for RtrArg {
    type Err = String;

    fn from_str(s: &str) -> Result<RtrArg, String> {
        if s == "none" {
            return Ok(RtrArg(RtrSet::NONE));
        }
        let mut set = RtrSet::NONE;
        for word in s.split(',') {
            let rtr = match word {
                "send" => Rtr::Send,
                "write" => Rtr::Write,
                "read" => Rtr::Read,
                _ => return Err(format!("'{word}' is none of send, write, read")),
            };
            set = set.with(RtrSet::of(rtr));
        }
        Ok(RtrArg(set))
    }
}

impl MpaArgs {
    /// Returns the options of a connecting peer.
    pub(crate) fn client(&self) -> Result<MpaOptions, Failure> {
        let options = self.options();
        if options.revision == Revision::V1 && !options.rtr.is_empty() {
            return Err(Failure::usage("--rtr needs revision 2 of MPA, which --mpa 1 excludes"));
        }
        if options.fall_back && !options.rtr.is_empty() {
            return Err(Failure::usage(
                "--mpa auto does not go with --rtr, which needs revision 2",
            ));
        }
        Ok(options)
    }

    /// Returns the options of a listener.
    pub(crate) fn server(&self) -> Result<MpaOptions, Failure> {
        let options = self.options();
        if options.rtr.is_empty() && self.rtr.is_some() && options.revision > Revision::V1 {
            return Err(Failure::usage(
                "--rtr none: a server of revision 2 takes one of them at least (RFC 6581 section 9.2)",
            ));
        }
        Ok(options)
    }

    fn options(&self) -> MpaOptions {
        let revision = if self.mpa == RevisionArg::One { Revision::V1 } else { Revision::V2 };
        let usual = MpaOptions::new();
        let crc = self.crc.map(|crc| match crc {
            Switch::On => CrcPolicy::Required,
            Switch::Off => CrcPolicy::Off,
        });
        usual
            .revision(revision)
            .fall_back(self.mpa == RevisionArg::Auto)
            .crc(crc.unwrap_or(usual.crc))
            .crc_inside(crc.unwrap_or(usual.crc_inside))
            .markers(self.markers)
            .peer_to_peer(self.rtr.map_or(RtrSet::NONE, |r| r.0))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        mpa: MpaArgs,
    }

    fn args(words: &[&str]) -> MpaArgs {
        Line::try_parse_from([&["x"], words].concat()).unwrap_or_else(|e| panic!("{e}")).mpa
    }

    fn client(words: &[&str]) -> Option<MpaOptions> {
        args(words).client().ok()
    }

    #[test]
    fn test_command_line_options_set_mpa_options() {
        let base = MpaOptions::new();
        let set = RtrSet::of(Rtr::Send).with(RtrSet::of(Rtr::Read));
        for (words, want) in [
            (&[][..], base),
            (&["--crc", "off"], base.crc(CrcPolicy::Off)),
            (&["--crc", "on"], base.crc_inside(CrcPolicy::Required)),
            (&["--mpa", "1"], base.revision(Revision::V1)),
            (&["--mpa", "auto"], base.fall_back(true)),
            (&["--markers"], base.markers(true)),
            (&["--rtr", "read,send"], base.peer_to_peer(set)),
            (&["--rtr", "none"], base),
        ] {
            assert_eq!(client(words), Some(want), "{words:?}");
        }
        assert_eq!(args(&["--rtr", "write"]).server().ok(), client(&["--rtr", "write"]));
    }

    #[test]
    fn test_conflicting_mpa_options_are_refused() {
        for words in [&["--mpa", "1", "--rtr", "send"], &["--mpa", "auto", "--rtr", "send"]] {
            assert_eq!(client(words), None, "{words:?}");
        }
        assert!(args(&["--rtr", "none"]).server().is_err());
        assert!(args(&["--rtr", "none", "--mpa", "1"]).server().is_ok());
        for words in ["", "sends", "send,", "none,send"] {
            assert!(Line::try_parse_from(["x", "--rtr", words]).is_err(), "{words:?}");
        }
    }
}
