//! Rights on the control socket, by the user and group of the process that connected.

use crate::config::{Control, Principal};

/// The process at the other end, as the system reports it (SO_PEERCRED).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// User id of the process.
    pub uid: u32,
    /// Group id of the process.
    pub gid: u32,
}

/// The rights of a process on the control socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// May read the appliance's state.
    pub look: bool,
    /// May change the appliance.
    pub change: bool,
    /// May read values that give access to memory: root and the appliance's own user.
    pub secrets: bool,
}

impl Access {
    /// Returns the rights of `peer` on a socket with the settings `control`, of a process of user
    /// `own`.
    pub fn of(peer: Peer, control: &Control, own: u32) -> Access {
        let covered = |list: &[Principal]| list.iter().any(|p| p.covers(peer.uid, peer.gid));
        let secrets = peer.uid == 0 || peer.uid == own;
        let change = secrets || covered(&control.change);
        Access { look: change || covered(&control.read), change, secrets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_user_who_may_change_may_also_look_and_others_only_as_listed() {
        let mut control = Control::at("/x");
        let may = |control: &Control, uid, gid| {
            let a = Access::of(Peer { uid, gid }, control, 500);
            (a.look, a.change, a.secrets)
        };
        assert_eq!(may(&control, 0, 7), (true, true, true));
        assert_eq!(may(&control, 500, 7), (true, true, true));
        assert_eq!(may(&control, 1, 0), (false, false, false), "the group of root is not root");
        control.read = vec![Principal::User(1)];
        control.change = vec![Principal::Group { gid: 9, members: [3].into() }];
        assert_eq!(may(&control, 1, 7), (true, false, false));
        assert_eq!(may(&control, 2, 9), (true, true, false));
        assert_eq!(may(&control, 3, 7), (true, true, false));
        assert_eq!(may(&control, 2, 7), (false, false, false));
        control.read.push(Principal::Any);
        assert_eq!(may(&control, 2, 7), (true, false, false));
    }
}
