//! Settings of TCP that an application may choose for a listener or a connection.

/// The algorithm that sizes the congestion window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Congestion {
    /// CUBIC (RFC 9438), with HyStart++ (RFC 9406) in the first slow start.
    #[default]
    Cubic,
    /// Reno (RFC 5681, RFC 6582).
    NewReno,
    /// DCTCP (RFC 8257), for networks whose switches mark packets early, and peers that run DCTCP
    /// too. Without ECN the connection behaves like Reno.
    Dctcp,
}

impl Congestion {
    /// The names of the algorithms in settings.
    pub const NAMES: [(&str, Congestion); 3] = [
        ("cubic", Congestion::Cubic),
        ("newreno", Congestion::NewReno),
        ("dctcp", Congestion::Dctcp),
    ];
}

/// Whether a connection uses Explicit Congestion Notification (RFC 3168), and which feedback it asks
/// for. A peer that opens the connection and asks for accurate feedback (RFC 9768) gets it, unless ECN
/// is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Ecn {
    /// Never.
    Off,
    /// Where the peer opens the connection and asks for it.
    #[default]
    Accept,
    /// Where the peer accepts or asks for it: our SYN asks.
    Request,
    /// As [`Ecn::Request`], but our SYN asks for accurate feedback (AccECN, RFC 9768). A peer
    /// without it falls back to the feedback of RFC 3168, or to none.
    Accurate,
}

impl Ecn {
    /// The names in settings.
    pub const NAMES: [(&str, Ecn); 4] = [
        ("off", Ecn::Off),
        ("accept", Ecn::Accept),
        ("request", Ecn::Request),
        ("accurate", Ecn::Accurate),
    ];
}

/// Whether a connection spreads what it sends over the round trip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Pacing {
    /// Never: bytes go as soon as the windows allow.
    Off,
    /// Where round trips take 4 ms or more.
    #[default]
    Auto,
}

impl Pacing {
    /// The names in settings.
    pub const NAMES: [(&str, Pacing); 2] = [("off", Pacing::Off), ("auto", Pacing::Auto)];
}

/// The settings of a listener's connections, or of one connection, where they differ from the
/// settings of the RNIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct TcpTerms {
    /// The algorithm that sizes the congestion window.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub congestion: Option<Congestion>,
    /// Whether the connections use ECN.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub ecn: Option<Ecn>,
    /// Whether the connections spread new data over the round trip.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub pacing: Option<Pacing>,
}

impl TcpTerms {
    /// Returns these settings, and those of `other` where these name none.
    #[must_use]
    pub fn or(self, other: TcpTerms) -> TcpTerms {
        TcpTerms {
            congestion: self.congestion.or(other.congestion),
            ecn: self.ecn.or(other.ecn),
            pacing: self.pacing.or(other.pacing),
        }
    }

    /// Returns true if all settings are those of the RNIC.
    pub fn is_usual(&self) -> bool {
        *self == TcpTerms::default()
    }
}
