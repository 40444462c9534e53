//! Transport properties of version 2: what each end announces about itself on an established
//! connection (draft section 5).

use crate::v2::{self, Property, PropertySet};
use crate::xdr::{self, Reader, Writer};

/// Codes of properties (section 5.2).
pub mod id {
    /// The longest Send, in bytes.
    pub const SBSIZ: u32 = 1;
    /// The shortest Receive buffer, in bytes.
    pub const RBSIZ: u32 = 2;
    /// The longest segment, in bytes.
    pub const RSSIZ: u32 = 3;
    /// The number of segments in a requester's header.
    pub const RCSIZ: u32 = 4;
    /// The level of reverse-direction support.
    pub const BRS: u32 = 5;
    /// A host authentication message.
    pub const HOSTAUTH: u32 = 6;
}

/// The reverse-direction support of a peer (section 5.2.5), from less to more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReverseSupport {
    /// No support.
    #[default]
    None,
    /// A single Send each way, without chunks.
    Simple,
    /// Several Sends each way, without chunks.
    Continued,
    /// Everything that works in the forward direction.
    General,
}

impl ReverseSupport {
    /// Returns the level of a code. A level that the draft does not define is one that this end
    /// cannot use, and counts as none.
    pub const fn of(code: u32) -> ReverseSupport {
        match code {
            1 => ReverseSupport::Simple,
            2 => ReverseSupport::Continued,
            3 => ReverseSupport::General,
            _ => ReverseSupport::None,
        }
    }

    /// Returns the code of the level.
    pub const fn code(self) -> u32 {
        self as u32
    }
}

/// The value of a property. `None` is an empty value, which stands for the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Maximum Send Size, in bytes.
    SendSize(Option<u32>),
    /// Receive Buffer Size, in bytes.
    ReceiveSize(Option<u32>),
    /// Maximum Segment Size, in bytes.
    SegmentSize(Option<u32>),
    /// Maximum Segment Count.
    SegmentCount(Option<u32>),
    /// Reverse-Direction Support, as its code.
    Reverse(Option<u32>),
    /// Host Authentication Message.
    HostAuth(Option<&'a [u8]>),
    /// A property that the draft does not define, and that a receiver skips.
    Unknown,
}

impl<'a> Value<'a> {
    /// Decodes the value of `property`, whose bytes must be exactly XDR of its type.
    ///
    /// # Errors
    /// Returns the fault in the bytes. The receiver refuses the whole message (section 7.2.2).
    pub fn of(property: Property<'a>) -> Result<Value<'a>, xdr::Error> {
        let mut r = Reader::new(property.data);
        let default = property.data.is_empty();
        let number = |r: &mut Reader<'_>| if default { Ok(None) } else { r.u32().map(Some) };
        let value = match property.id {
            id::SBSIZ => Value::SendSize(number(&mut r)?),
            id::RBSIZ => Value::ReceiveSize(number(&mut r)?),
            id::RSSIZ => Value::SegmentSize(number(&mut r)?),
            id::RCSIZ => Value::SegmentCount(number(&mut r)?),
            id::BRS => Value::Reverse(number(&mut r)?),
            id::HOSTAUTH if default => Value::HostAuth(None),
            id::HOSTAUTH => Value::HostAuth(Some(r.opaque(u32::MAX)?)),
            _ => return Ok(Value::Unknown),
        };
        r.finish()?;
        Ok(value)
    }
}

/// The known properties of an end: its numbers, with defaults for those that the end did not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Length in bytes of the longest Send that the end makes.
    pub send_size: u32,
    /// Length in bytes of the end's shortest Receive buffer.
    pub receive_size: u32,
    /// Length in bytes of the longest segment that the end sends or takes.
    pub segment_size: u32,
    /// Number of segments that the end takes in a header.
    pub segment_count: u32,
    /// Level of reverse-direction support of the end.
    pub reverse: ReverseSupport,
}

impl Properties {
    /// The properties of an end that sends none (section 5.2, table 1).
    pub const DEFAULT: Properties = Properties {
        send_size: v2::INLINE_THRESHOLD,
        receive_size: v2::INLINE_THRESHOLD,
        segment_size: 1 << 20,
        segment_count: 16,
        reverse: ReverseSupport::None,
    };

    /// Length of an encoded number in bytes.
    pub const NUMBER_LEN: usize = 4;

    /// Takes over the values in `set`; the last value of a repeated property counts. An empty value
    /// restores the default.
    pub fn update(&mut self, set: &PropertySet<'_>) {
        let default = Properties::DEFAULT;
        for property in set.properties() {
            match Value::of(property) {
                Ok(Value::SendSize(n)) => self.send_size = n.unwrap_or(default.send_size),
                Ok(Value::ReceiveSize(n)) => self.receive_size = n.unwrap_or(default.receive_size),
                Ok(Value::SegmentSize(n)) => self.segment_size = n.unwrap_or(default.segment_size),
                Ok(Value::SegmentCount(n)) => {
                    self.segment_count = n.unwrap_or(default.segment_count);
                }
                Ok(Value::Reverse(n)) => self.reverse = ReverseSupport::of(n.unwrap_or(0)),
                // `PropertySet` has checked the values, so there are no bad ones.
                Ok(Value::HostAuth(_) | Value::Unknown) | Err(_) => {}
            }
        }
    }

    /// Encodes the numbers, in order of their codes.
    pub fn encoded(&self) -> Encoded {
        let numbers = [
            (id::SBSIZ, self.send_size),
            (id::RBSIZ, self.receive_size),
            (id::RSSIZ, self.segment_size),
            (id::RCSIZ, self.segment_count),
            (id::BRS, self.reverse.code()),
        ];
        Encoded(numbers.map(|(id, n)| (id, n.to_be_bytes())))
    }
}

impl Default for Properties {
    fn default() -> Properties {
        Properties::DEFAULT
    }
}

/// The encoded bytes of [`Properties`], which a [`PropertySet`] borrows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded([(u32, [u8; Properties::NUMBER_LEN]); 5]);

impl Encoded {
    /// Returns the encoded numbers as properties.
    pub fn properties(&self) -> [Property<'_>; 5] {
        self.0.each_ref().map(|(id, data)| Property { id: *id, data })
    }
}

/// The two inline thresholds of an end: the lengths of the connection's longest Sends (section
/// 4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Length in bytes of the longest Send that this end makes.
    pub send: u32,
    /// Length in bytes of the longest Send that this end receives.
    pub receive: u32,
}

/// The error that a peer takes or sends less than the first message of a connection may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("inline threshold of {bytes} bytes")]
pub struct ThresholdError {
    /// The threshold that the properties would give, in bytes.
    pub bytes: u32,
}

impl Thresholds {
    /// The thresholds before the ends have exchanged properties.
    pub const DEFAULT: Thresholds =
        Thresholds { send: v2::INLINE_THRESHOLD, receive: v2::INLINE_THRESHOLD };

    /// Derives the thresholds from the properties of this end and its peer. The threshold for each
    /// direction is the smaller of the sender's and the receiver's size.
    ///
    /// # Errors
    /// Returns an error when a threshold is below [`v2::FIRST_MESSAGE_MAX`], so that not even the
    /// messages which establish the connection are sure to fit. The draft sets no limit; this end
    /// refuses to work with such a peer.
    pub fn of(ours: &Properties, peers: &Properties) -> Result<Thresholds, ThresholdError> {
        let send = ours.send_size.min(peers.receive_size);
        let receive = ours.receive_size.min(peers.send_size);
        let bytes = send.min(receive);
        if bytes < v2::FIRST_MESSAGE_MAX {
            return Err(ThresholdError { bytes });
        }
        Ok(Thresholds { send, receive })
    }
}

/// Encodes a Host Authentication Message: XDR of opaque data, within the property's opaque data.
///
/// # Errors
/// Returns an error when `out` is too short.
pub fn encode_host_auth(message: &[u8], out: &mut [u8]) -> Result<usize, xdr::NoRoom> {
    let mut w = Writer::new(out);
    w.opaque(message);
    w.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(id: u32, data: &[u8]) -> Result<Value<'_>, xdr::Error> {
        Value::of(Property { id, data })
    }

    #[test]
    fn test_empty_value_means_default_of_each_property() {
        assert_eq!(value(id::SBSIZ, &[]), Ok(Value::SendSize(None)));
        assert_eq!(value(id::HOSTAUTH, &[]), Ok(Value::HostAuth(None)));
        let mut p = Properties { send_size: 1, segment_count: 2, ..Properties::DEFAULT };
        let reset = [Property { id: id::SBSIZ, data: &[] }, Property { id: id::RCSIZ, data: &[] }];
        p.update(&PropertySet::new(&reset).unwrap());
        assert_eq!(p, Properties::DEFAULT);
    }

    #[test]
    fn test_value_of_another_length_than_its_type_is_refused() {
        for id in id::SBSIZ..=id::BRS {
            assert!(value(id, &[0, 0, 0, 1]).is_ok());
            assert!(value(id, &[0, 0, 1]).is_err());
            assert!(value(id, &[0, 0, 0, 1, 0]).is_err());
        }
        assert_eq!(value(id::HOSTAUTH, &[0, 0, 0, 0]), Ok(Value::HostAuth(Some(&[]))));
        assert_eq!(value(id::HOSTAUTH, b"\0\0\0\x01a\0\0\0"), Ok(Value::HostAuth(Some(b"a"))));
        assert!(value(id::HOSTAUTH, b"\0\0\0\x02a").is_err());
        assert!(value(id::HOSTAUTH, b"\0\0\0\x01a\0\0\0\0\0\0\0").is_err());
        assert_eq!(value(7, &[1, 2, 3]), Ok(Value::Unknown), "what is not known is not looked at");
        assert_eq!(value(0, &[]), Ok(Value::Unknown));
    }

    #[test]
    fn test_properties_are_read_as_they_were_written() {
        let ours = Properties {
            send_size: 8192,
            receive_size: 16384,
            segment_size: 1 << 22,
            segment_count: 64,
            reverse: ReverseSupport::Continued,
        };
        let encoded = ours.encoded();
        let properties = encoded.properties();
        let set = PropertySet::new(&properties).unwrap();
        let mut read = Properties::DEFAULT;
        read.update(&set);
        assert_eq!(read, ours);
    }

    #[test]
    fn test_last_of_two_values_counts_and_unknown_ones_are_passed_over() {
        let twice = [
            Property { id: id::RBSIZ, data: &[0, 0, 0x20, 0] },
            Property { id: 99, data: &[1] },
            Property { id: id::RBSIZ, data: &[0, 0, 0x40, 0] },
        ];
        let mut p = Properties::DEFAULT;
        p.update(&PropertySet::new(&twice).unwrap());
        assert_eq!(p, Properties { receive_size: 0x4000, ..Properties::DEFAULT });
        let bad = [twice[1], Property { id: id::RBSIZ, data: &[0] }];
        assert_eq!(PropertySet::new(&bad), Err(1));
    }

    #[test]
    fn test_unknown_level_of_reverse_support_means_none() {
        for code in 0..4 {
            assert_eq!(ReverseSupport::of(code).code(), code);
        }
        assert_eq!(ReverseSupport::of(4), ReverseSupport::None);
        assert!(ReverseSupport::Simple < ReverseSupport::General);
    }

    #[test]
    fn test_thresholds_are_the_smaller_of_sender_and_receiver() {
        let size =
            |send_size, receive_size| Properties { send_size, receive_size, ..Properties::DEFAULT };
        let (ours, peers) = (size(9000, 2048), size(65536, 8192));
        assert_eq!(Thresholds::of(&ours, &peers), Ok(Thresholds { send: 8192, receive: 2048 }));
        assert_eq!(Thresholds::of(&peers, &ours), Ok(Thresholds { send: 2048, receive: 8192 }));
        let default = Properties::DEFAULT;
        assert_eq!(Thresholds::of(&default, &default), Ok(Thresholds::DEFAULT));
    }

    #[test]
    fn test_threshold_below_1024_bytes_is_refused() {
        let peers = Properties { receive_size: 1024, ..Properties::DEFAULT };
        assert!(Thresholds::of(&Properties::DEFAULT, &peers).is_ok());
        let peers = Properties { receive_size: 1023, ..Properties::DEFAULT };
        let refused = Thresholds::of(&Properties::DEFAULT, &peers);
        assert_eq!(refused, Err(ThresholdError { bytes: 1023 }));
        let peers = Properties { send_size: 0, ..Properties::DEFAULT };
        let refused = Thresholds::of(&Properties::DEFAULT, &peers);
        assert_eq!(refused, Err(ThresholdError { bytes: 0 }));
    }
}
