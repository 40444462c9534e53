//! Arguments of virtual devices, in DPDK's own syntax.

use std::ffi::CString;
use std::fmt;
use std::str::FromStr;

use super::error::PortError;

/// A virtual device: `name[,key=value]...`, as `net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap`. The
/// name starts with the driver's name and ends in a part that sets the device apart.
///
/// Parsing checks the shape; opening the port shows whether the driver knows the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VdevArg {
    name: String,
    args: String,
}

/// The longest device name that the EAL takes, without its NUL.
const MAX_NAME: usize = 63;

impl VdevArg {
    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the arguments after the name, without the first comma.
    pub fn args(&self) -> &str {
        &self.args
    }

    pub(crate) fn c_name(&self) -> CString {
        // Parsing rejects NUL, so this cannot fail.
        CString::new(self.name.as_str()).unwrap_or_default()
    }
}

impl fmt::Display for VdevArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if !self.args.is_empty() {
            write!(f, ",{}", self.args)?;
        }
        Ok(())
    }
}

impl FromStr for VdevArg {
    type Err = PortError;

    fn from_str(s: &str) -> Result<VdevArg, PortError> {
        let bad = |why: &str| PortError::BadDevice {
            device: s.escape_debug().to_string(),
            why: why.into(),
        };
        let (name, args) = s.split_once(',').unwrap_or((s, ""));
        if !name.starts_with("net_") {
            return Err(bad("the name of a network device starts with net_, as net_tap0"));
        }
        if name.len() > MAX_NAME {
            return Err(bad("the name is longer than 63 characters"));
        }
        if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) {
            return Err(bad(
                "the name has characters other than letters, digits, '_', '-' and '.'",
            ));
        }
        if args.chars().any(char::is_control) {
            return Err(bad("the arguments have control characters"));
        }
        if s.ends_with(',') || args.split(',').any(|a| a.is_empty() && !args.is_empty()) {
            return Err(bad("an argument is empty"));
        }
        if args.split(',').any(|a| a.starts_with('=')) {
            return Err(bad("an argument has no name"));
        }
        Ok(VdevArg { name: name.into(), args: args.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_parse_keeps_name_and_arguments() {
        let v: VdevArg = "net_pcap0,rx_pcap=a b.pcap,tx_pcap=o.pcap".parse().unwrap();
        assert_eq!((v.name(), v.args()), ("net_pcap0", "rx_pcap=a b.pcap,tx_pcap=o.pcap"));
        assert_eq!(v.to_string(), "net_pcap0,rx_pcap=a b.pcap,tx_pcap=o.pcap");
        assert_eq!("net_null0".parse::<VdevArg>().unwrap().args(), "");
    }

    #[test]
    fn test_parse_refuses_and_names_the_device() {
        let long = format!("net_{}", "x".repeat(60));
        for bad in [
            "",
            "pcap0",
            "net_a b",
            "net_null0,",
            "net_null0,,a=1",
            "net_x\0",
            "net_x,a=\n",
            "net_x,=1",
            &long,
        ] {
            let e = bad.parse::<VdevArg>().unwrap_err().to_string();
            assert!(e.contains(&bad.escape_debug().to_string()), "{e}");
            assert!(!e.contains('\n') && !e.contains('\0'), "{e:?}");
        }
    }
}
