//! Sets of transport properties as encoded on the wire (draft section 5.1).
//! [`property`](crate::property) defines the meaning of the values.

use core::fmt;

use crate::header::{Error, Fault};
use crate::property;
use crate::xdr::{self, Reader, Writer};

/// A property: a code and the XDR of its value, at most 2^32 - 1 bytes. An empty value stands for
/// the property's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property<'a> {
    /// Code of the property.
    pub id: u32,
    /// Value of the property, XDR within XDR.
    pub data: &'a [u8],
}

#[derive(Clone, Copy)]
enum Store<'a> {
    /// Properties as this end received them, and their number.
    Wire(&'a [u8], u32),
    /// Properties that this end sends.
    Values(&'a [Property<'a>]),
}

/// A set of properties. Known properties have values of their types. The set keeps unknown
/// properties, which the receiver skips.
#[derive(Clone, Copy)]
pub struct PropertySet<'a>(Store<'a>);

impl<'a> PropertySet<'a> {
    /// The empty set.
    pub const EMPTY: PropertySet<'static> = PropertySet(Store::Values(&[]));

    /// Creates a sender's set.
    ///
    /// # Errors
    /// Returns the index of a property that the receiver would refuse.
    pub fn new(properties: &'a [Property<'a>]) -> Result<PropertySet<'a>, usize> {
        let bad = |p: &Property<'_>| {
            property::Value::of(*p).is_err() || u32::try_from(p.data.len()).is_err()
        };
        match properties.iter().position(bad) {
            Some(index) => Err(index),
            None => Ok(PropertySet(Store::Values(properties))),
        }
    }

    pub(crate) fn decode(r: &mut Reader<'a>) -> Result<PropertySet<'a>, Error> {
        let count = r.u32()?;
        let start = r.at();
        // `count` is unchecked, but the loop ends where the message ends.
        for _ in 0..count {
            let at = r.at();
            let id = r.u32()?;
            // A value that extends beyond the message is a bad value of any property (section 5.1).
            let bad = |_: xdr::Error| Error { at, fault: Fault::Propval { id } };
            let data = r.opaque(u32::MAX).map_err(bad)?;
            property::Value::of(Property { id, data })
                .map_err(|_| Error { at, fault: Fault::Propval { id } })?;
        }
        Ok(PropertySet(Store::Wire(r.since(start), count)))
    }

    /// Returns the number of properties.
    pub fn len(&self) -> usize {
        match self.0 {
            Store::Wire(_, count) => count as usize,
            Store::Values(all) => all.len(),
        }
    }

    /// Returns true if the set has no properties.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the properties in the order of the set.
    pub fn properties(&self) -> impl Iterator<Item = Property<'a>> + use<'a> {
        let (bytes, values) = match self.0 {
            Store::Wire(bytes, _) => (bytes, &[][..]),
            Store::Values(all) => (&[][..], all),
        };
        let mut r = Reader::new(bytes);
        let received = core::iter::from_fn(move || {
            let id = r.u32().ok()?;
            Some(Property { id, data: r.opaque(u32::MAX).ok()? })
        });
        received.chain(values.iter().copied())
    }

    pub(crate) fn encode(&self, w: &mut Writer<'_>) {
        w.u32(u32::try_from(self.len()).unwrap_or(u32::MAX));
        for Property { id, data } in self.properties() {
            w.u32(id);
            w.opaque(data);
        }
    }
}

impl PartialEq for PropertySet<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.properties().eq(other.properties())
    }
}

impl Eq for PropertySet<'_> {}

impl fmt::Debug for PropertySet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.properties()).finish()
    }
}
