//! The paths that a command line names: local paths, and paths of a server.

use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// The default port of NFS over RDMA (RFC 8267 section 9).
const PORT: u16 = 20049;

/// A path of a server: `ADDR[:PORT]:/PATH`, with an IPv6 address and a port as `[ADDR]:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(super) server: SocketAddr,
    /// Absolute path in the server's namespace: begins with `/`.
    pub(super) path: String,
}

impl FromStr for Remote {
    type Err = String;

    fn from_str(s: &str) -> Result<Remote, String> {
        let wrong = || format!("'{s}' is not ADDR[:PORT]:/PATH");
        // Addresses contain no slash, so the first `:/` ends the address.
        let (server, _) = s.split_once(":/").ok_or_else(wrong)?;
        let path = s.get(server.len() + 1..).ok_or_else(wrong)?.to_owned();
        let bare = server.trim_start_matches('[').trim_end_matches(']');
        let addr = server.parse().ok();
        let addr = addr.or_else(|| Some(SocketAddr::new(bare.parse::<IpAddr>().ok()?, PORT)));
        Ok(Remote { server: addr.ok_or_else(wrong)?, path })
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.path)
    }
}

/// An end of a copy: its source or its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Remote(Remote),
    Local(PathBuf),
}

impl FromStr for Place {
    type Err = Infallible;

    /// Parses a path: a server's if it begins with an address, local otherwise.
    fn from_str(s: &str) -> Result<Place, Infallible> {
        Ok(s.parse().map_or_else(|_| Place::Local(s.into()), Place::Remote))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(server: &str, path: &str) -> Option<Remote> {
        Some(Remote { server: server.parse().ok()?, path: path.into() })
    }

    #[test]
    fn test_remote_place_is_parsed_with_and_without_port() {
        for (text, server, path) in [
            ("10.0.0.1:/", "10.0.0.1:20049", "/"),
            ("10.0.0.1:2049:/a/b:/c", "10.0.0.1:2049", "/a/b:/c"),
            ("fd00::1:/a", "[fd00::1]:20049", "/a"),
            ("[fd00::1]:/a", "[fd00::1]:20049", "/a"),
            ("[fd00::1]:7:/a", "[fd00::1]:7", "/a"),
        ] {
            assert_eq!(text.parse().ok(), remote(server, path), "{text}");
        }
    }

    #[test]
    fn test_place_without_leading_address_is_local() {
        for text in ["a", "/a", "./10.0.0.1:/a", "10.0.0.1", "10.0.0.1:a", "host:/a", ":/a"] {
            assert!(text.parse::<Remote>().is_err(), "{text}");
            assert_eq!(text.parse(), Ok(Place::Local(text.into())));
        }
    }
}
