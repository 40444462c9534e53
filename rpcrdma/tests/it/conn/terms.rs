//! The private data that both ends of version 1 exchange (RFC 8797), and their effect on a
//! connection.

use heddle_rpcrdma::conn::{Event, Side, Speaks};
use heddle_rpcrdma::private_data::PrivateData;

use crate::conn::model::settle;
use crate::conn::scene::{NOW, answer, big_call, ended, established, reply};

/// Section 3.2: a reply invalidates memory of its call if both ends have announced support. If an
/// end has not, or has sent no private data at all, the reply is a plain Send, and the client
/// invalidates by itself.
#[test]
fn test_server_invalidates_only_if_both_ends_announced_support() {
    let said = |invalidate| PrivateData::new(invalidate, 4096, 4096);
    for client in [None, said(false), said(true)] {
        for server in [None, said(false), said(true)] {
            let (mut c, mut s) = established(Speaks::V1, |config| {
                let is_client = config.side == Side::Client;
                let (ours, peers) = if is_client { (client, server) } else { (server, client) };
                config.private_data = ours.unwrap_or_default();
                config.peers_private_data = peers;
            });
            big_call(&mut c, 1, 0, 65536);
            settle(&mut c, &mut s, NOW);
            answer(&mut s, &reply(1, 65536, 0));
            settle(&mut c, &mut s, NOW);
            assert!(matches!(ended(&mut c)[..], [Event::Reply { .. }]), "{client:?} {server:?}");
            let by_the_server = client == said(true) && server == said(true);
            // `posted[3]` counts the client's own invalidations.
            let invalidations = (c.conn.counters().remote_invalidations, c.posted[3]);
            let want = if by_the_server { (1, 0) } else { (0, 1) };
            assert_eq!(invalidations, want, "{client:?} {server:?}");
        }
    }
}
