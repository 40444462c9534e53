//! Sets of transport properties as they stand on the wire (draft section 5.1). What the values mean
//! is in [`property`](crate::property).

use core::fmt;

use crate::header::{Error, Fault};
use crate::property;
use crate::xdr::{self, Reader, Writer};

/// A property: a code and the XDR of its value, at most 2^32 - 1 octets. No octets stand for the
/// property's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property<'a> {
    /// Which one.
    pub id: u32,
    /// Its value, XDR within XDR.
    pub data: &'a [u8],
}

#[derive(Clone, Copy)]
enum Store<'a> {
    /// As they were received, and how many.
    Wire(&'a [u8], u32),
    /// A sender's.
    Values(&'a [Property<'a>]),
}

/// A set of properties. Those that are known have values of their types; those that are not are kept,
/// to be passed over.
#[derive(Clone, Copy)]
pub struct PropertySet<'a>(Store<'a>);

impl<'a> PropertySet<'a> {
    /// The empty set.
    pub const EMPTY: PropertySet<'static> = PropertySet(Store::Values(&[]));

    /// That of a sender.
    ///
    /// # Errors
    /// The index of a property that the receiver would refuse.
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
        // A set cannot be longer than the message, and so neither can this take.
        for _ in 0..count {
            let at = r.at();
            let id = r.u32()?;
            // A value that ends behind the message is a bad value, whatever the property (5.1).
            let bad = |_: xdr::Error| Error { at, fault: Fault::Propval { id } };
            let data = r.opaque(u32::MAX).map_err(bad)?;
            property::Value::of(Property { id, data })
                .map_err(|_| Error { at, fault: Fault::Propval { id } })?;
        }
        Ok(PropertySet(Store::Wire(r.since(start), count)))
    }

    /// Number of properties.
    pub fn len(&self) -> usize {
        match self.0 {
            Store::Wire(_, count) => count as usize,
            Store::Values(all) => all.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The properties in the order of the set.
    pub fn properties(&self) -> impl Iterator<Item = Property<'a>> + use<'a> {
        let (octets, values) = match self.0 {
            Store::Wire(octets, _) => (octets, &[][..]),
            Store::Values(all) => (&[][..], all),
        };
        let mut r = Reader::new(octets);
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
