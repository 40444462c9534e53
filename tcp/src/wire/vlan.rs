//! VLAN tags (IEEE 802.1Q): four bytes between the station addresses of a frame and its type.
//!
//! ```text
//!  0     6     12       14          16     18
//!  | dst | src | 0x8100 | priority, | type | packet
//!  |     |     |        | VLAN      |      |
//! ```
//!
//! The stack reads frames without a tag: the receiver takes the tag out, which is the port or
//! else the [owner](crate::RxFrame::take_tag), and keeps its [contents](Tag) beside the frame. Sent
//! frames have the tag in their place in the header, where any port takes it.

use core::fmt;
use core::str::FromStr;

use super::{EtherType, be16, ethernet};

/// Where the tag begins in a frame.
pub const TAG_AT: usize = 12;
/// Bytes of a tag.
pub const TAG_LEN: usize = 4;

/// The identifier of a VLAN, or none, for the frames of a link that belong to no VLAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vid(u16);

impl Vid {
    /// No VLAN: frames without a tag, or with a tag that only has a priority.
    pub const NONE: Vid = Vid(0);

    /// Returns the VLAN with this identifier, 1..=4094.
    pub const fn new(vid: u16) -> Option<Vid> {
        // 0 means no VLAN, and 4095 is reserved.
        if vid == 0 || vid > 4094 { None } else { Some(Vid(vid)) }
    }

    /// Returns the identifier; 0 for no VLAN.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Returns true for no VLAN.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Vid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The contents of a tag: priority, drop eligibility and VLAN. The default is that of no tag.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Tag(pub u16);

impl Tag {
    /// Bits of the VLAN's identifier.
    const VID: u16 = 0x0fff;

    /// Returns the tag of frames of a VLAN, with a priority of 0..=7.
    pub const fn new(vid: Vid, priority: u8) -> Tag {
        Tag((priority as u16 & 7) << 13 | vid.0)
    }

    /// Returns the VLAN. Identifier 4095, which is reserved, is that of no VLAN that a port can have.
    #[inline(always)]
    pub const fn vid(self) -> Vid {
        Vid(self.0 & Tag::VID)
    }

    /// Returns the priority (PCP).
    pub const fn priority(self) -> u8 {
        (self.0 >> 13).to_le_bytes()[0]
    }

    /// Returns true if a frame with these contents needs no tag.
    #[inline(always)]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns the contents of the tag in a frame that begins with `head`, if it has one.
    #[inline]
    pub fn of(head: &[u8]) -> Option<Tag> {
        let head = head.get(..ethernet::HEADER_LEN + TAG_LEN)?;
        (be16(head, TAG_AT) == EtherType::VLAN.0).then(|| Tag(be16(head, TAG_AT + 2)))
    }

    /// Returns the bytes of the tag.
    pub fn bytes(self) -> [u8; TAG_LEN] {
        let ([a, b], [c, d]) = (EtherType::VLAN.0.to_be_bytes(), self.0.to_be_bytes());
        [a, b, c, d]
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({} priority {})", self.vid(), self.priority())
    }
}

/// How frames of a VLAN get their priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Priority {
    /// The same for all frames, 0..=7.
    Fixed(u8),
    /// The class that the DSCP of the packet selects: its upper three bits (RFC 2474 section
    /// 4.2.2.1).
    Dscp,
}

impl Default for Priority {
    fn default() -> Priority {
        Priority::Fixed(0)
    }
}

impl Priority {
    /// Returns the priority of a packet with this DSCP.
    pub const fn of(self, dscp: u8) -> u8 {
        match self {
            Priority::Fixed(priority) => priority & 7,
            Priority::Dscp => (dscp & 0x3f) >> 3,
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Priority::Fixed(priority) => fmt::Display::fmt(priority, f),
            Priority::Dscp => f.pad("dscp"),
        }
    }
}

/// The error for text that is no [`Priority`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a priority is 0 to 7, or dscp for the class of each packet's DSCP")]
pub struct PriorityError;

impl FromStr for Priority {
    type Err = PriorityError;

    fn from_str(s: &str) -> Result<Priority, PriorityError> {
        if s == "dscp" {
            return Ok(Priority::Dscp);
        }
        let priority = s.parse().ok().filter(|p| *p <= 7).ok_or(PriorityError)?;
        Ok(Priority::Fixed(priority))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_identifiers_are_1_to_4094() {
        for (vid, valid) in [(0, false), (1, true), (4094, true), (4095, false), (4096, false)] {
            assert_eq!(Vid::new(vid).map(Vid::get), valid.then_some(vid));
        }
        assert!(Vid::NONE.is_none() && Vid::default() == Vid::NONE);
    }

    #[test]
    fn test_tag_has_priority_vlan_and_bytes() {
        let vid = Vid::new(0x123).unwrap();
        let tag = Tag::new(vid, 5);
        assert_eq!((tag.vid(), tag.priority(), tag.0), (vid, 5, 0xa123));
        assert_eq!(tag.bytes(), [0x81, 0, 0xa1, 0x23]);
        assert!(!tag.is_none() && !Tag::new(Vid::NONE, 1).is_none());
        assert!(Tag::new(Vid::NONE, 0).is_none());
        // The bit between priority and VLAN says nothing about either.
        assert_eq!((Tag(0x1123).vid(), Tag(0x1123).priority()), (vid, 0));
    }

    #[test]
    fn test_tag_is_read_only_where_a_type_follows_it() {
        let mut frame = [0; 18];
        frame[12..16].copy_from_slice(&Tag(0x600a).bytes());
        assert_eq!(Tag::of(&frame), Some(Tag(0x600a)));
        assert_eq!(Tag::of(&frame[..17]), None);
        // A tag of a provider's bridge is none of ours.
        frame[12..14].copy_from_slice(&EtherType::SERVICE.0.to_be_bytes());
        assert_eq!(Tag::of(&frame), None);
    }

    #[test]
    fn test_priority_is_fixed_or_the_class_of_the_dscp() {
        let parse = str::parse::<Priority>;
        assert_eq!(parse("5"), Ok(Priority::Fixed(5)));
        assert_eq!(parse("dscp"), Ok(Priority::Dscp));
        for wrong in ["8", "-1", "", "cs3"] {
            assert_eq!(parse(wrong), Err(PriorityError), "{wrong}");
        }
        assert_eq!(Priority::Fixed(3).of(46), 3);
        for (dscp, priority) in [(0, 0), (7, 0), (8, 1), (26, 3), (46, 5), (63, 7)] {
            assert_eq!(Priority::Dscp.of(dscp), priority, "{dscp}");
        }
        assert_eq!(
            (parse("4").unwrap().to_string(), Priority::Dscp.to_string().len()),
            ("4".into(), 4)
        );
    }
}
