//! The kernel's rules.

use underpass_netlink::{Message, Refusal, Type, Validate, policy};

use super::request::{
    FRA_L3MDEV, FRA_PROTOCOL, FRA_SUPPRESS_IFGROUP, FRA_TUN_ID, FRA_UID_RANGE, HEADER, MAX, parse,
};
use super::{FR_ACT_NOP, Rule};
use crate::route::table::Family;
use crate::{PROTOCOL, Request, Router};

const TOLD: [Type; MAX] = policy(&[]);
/// Where in the header the flags are; those that the kernel derives change without a word.
const FLAGS: std::ops::Range<usize> = 8..12;

/// A rule of the same content: the message without the derived flags.
fn content(body: &[u8]) -> (&[u8], &[u8]) {
    (body.get(..FLAGS.start).unwrap_or_default(), body.get(FLAGS.end..).unwrap_or_default())
}

/// Whether a rule was made by this protocol.
pub(crate) fn is_of(message: &Message<'_>, protocol: u8) -> bool {
    let mut attributes = message.attributes(HEADER);
    attributes.any(|attribute| attribute.kind == FRA_PROTOCOL && attribute.u8() == protocol)
}

/// Whether a rule leads to the tables of VRFs, which are this router's.
pub(crate) fn is_own(message: &Message<'_>) -> bool {
    message.attributes(HEADER).any(|attribute| attribute.kind == FRA_L3MDEV)
}

impl Router {
    /// `RTM_NEWRULE` and `RTM_DELRULE` of the kernel.
    pub(crate) fn mirror_rule(&mut self, request: &Request<'_>) -> Result<(), Refusal> {
        let Some(family) = Family::from_number(request.family()) else { return Ok(()) };
        let (_, attributes) = request.parse::<HEADER, MAX>(&TOLD, Validate::Liberal)?;
        if is_of(&request.message, PROTOCOL) {
            return Ok(());
        }
        let body = request.message.body();
        if request.message.kind == libc::RTM_DELRULE {
            self.unmirror_rule(family, body);
            return Ok(());
        }
        if let Some(unseen) = self.unseen()
            && let Some(seen) =
                unseen.rules.iter().position(|(of, told)| *of == family && content(told) == content(body))
        {
            unseen.rules.swap_remove(seen);
            return Ok(());
        }
        let (mut rule, _) = parse(self, request, family, &TOLD)?;
        rule.told = Some(body.into());
        // A forwarded packet belongs to no user but root and comes from no tunnel of the kernel's.
        let users = attributes.get(FRA_UID_RANGE).map(|range| range.u32());
        let tunnel = attributes.get(FRA_TUN_ID).is_some_and(|id| id.u64() != 0);
        let group = attributes.get(FRA_SUPPRESS_IFGROUP).is_some_and(|group| group.u32() != u32::MAX);
        if users.is_some_and(|first| first != 0) || tunnel {
            rule.action = FR_ACT_NOP;
        }
        self.put_mirrored_rule(family, rule);
        match group {
            true => Err(Refusal::new(libc::EOPNOTSUPP, "suppress_ifgroup of a rule is passed over")),
            false => Ok(()),
        }
    }

    fn put_mirrored_rule(&mut self, family: Family, rule: Rule) {
        self.routes.rules.add(family, rule);
        self.mirrored_rules_changed();
    }

    fn unmirror_rule(&mut self, family: Family, body: &[u8]) {
        if self.forget_rule(family, body) {
            self.mirrored_rules_changed();
        }
    }

    fn forget_rule(&mut self, family: Family, body: &[u8]) -> bool {
        let same = |rule: &Rule| rule.told.as_deref().is_some_and(|told| content(told) == content(body));
        let position = self.routes.rules.of(family).iter().position(same);
        position.map(|position| self.routes.rules.of_mut(family).remove(position)).is_some()
    }

    /// While a dump is read, the look-ups are compiled once, at its end: one for each rule would make
    /// forwarding tables that nobody wants later.
    fn mirrored_rules_changed(&mut self) {
        match self.unseen() {
            Some(unseen) => unseen.rules_changed = true,
            None => self.rules_changed(),
        }
    }

    /// The kernel's rules.
    pub(crate) fn mirrored_rules(&self) -> Vec<(Family, Box<[u8]>)> {
        let of = |family| {
            let told = self.routes.rules.of(family).iter().filter_map(|rule| rule.told.clone());
            told.map(move |told| (family, told))
        };
        of(Family::V4).chain(of(Family::V6)).collect()
    }

    /// Removes what a dump has not named.
    pub(crate) fn sweep_rules(&mut self, unseen: &[(Family, Box<[u8]>)]) {
        for (family, told) in unseen {
            self.forget_rule(*family, told);
        }
    }
}
