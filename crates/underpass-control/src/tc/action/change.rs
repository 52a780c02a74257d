//! Actions that come, change and go.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use libc::{EEXIST, EINVAL, ENODEV, ENOENT};
use underpass_engine::tables::TcActionId;
use underpass_netlink::tc::action::{self, Config, Counts, Entry, Shown, Times};
use underpass_netlink::{Attribute, Reply, RequestError};

use super::{Action, Context, Exts, Made, Name, known, request};
use crate::Router;

impl Router {
    /// What there is to warn of: policers whose burst is too small for a packet, and links where what the host itself
    /// sends goes past what looks at what leaves.
    pub fn warnings(&self) -> Vec<String> {
        let police = self.actions.of_kind("police");
        let small = police.filter_map(|(name, _)| Some((name, self.small_burst(name)?)));
        let small = small
            .map(|(name, small)| format!("the burst of police {} is {}", name.index, request::small(small)));
        let passed_by = self.passed_by().map(|link| {
            format!("{link}: what the host itself sends passes neither the filters nor the qdisc of what leaves there")
        });
        small.chain(passed_by).collect()
    }

    /// The packet path's name of an action.
    pub(crate) fn action_id(&self, name: Name) -> Option<TcActionId> {
        self.actions.by_name.get(&name).map(|action| action.id)
    }

    /// The policer's burst where it is too small for what the links carry, in bytes, and the length of a segment.
    pub(crate) fn small_burst(&self, name: Name) -> Option<(u64, u32)> {
        let Config::Police(police) = &self.actions.by_name.get(&name)?.config else { return None };
        let rate = police.rate?;
        let burst = u128::from(police.burst)
            * u128::from(underpass_netlink::tc::ticks_to_ns(1))
            * u128::from(rate.bytes);
        let burst = (burst / 1_000_000_000) as u64;
        let longest = self.links.iter().filter(|link| link.port().is_some()).map(|link| link.mtu).max()?;
        let packet = longest.min(police.mtu);
        (burst < packet.into()).then_some((burst, packet))
    }

    /// Makes an action of one element of a list, or finds it.
    fn init_action(
        &mut self,
        kind: &str,
        options: Option<&Attribute<'_>>,
        entry: Option<&Entry<'_>>,
        context: &Context,
    ) -> Result<(Name, Made), RequestError> {
        let config = Config::parse(kind, options)?;
        let bind = context.block.is_some();
        let kind = config.kind();
        let wanted = Name { kind, index: config.index() };
        let existing = wanted.index != 0 && self.actions.by_name.contains_key(&wanted);
        if existing && bind {
            if let Some(action) = self.actions.by_name.get_mut(&wanted) {
                action.refs += 1;
                action.binds += 1;
            }
            self.dress(wanted, entry);
            return Ok((wanted, Made::Bound));
        }
        if existing && !context.replace {
            let Config::TunnelKey(key) = &config else { return Err(RequestError::errno(EEXIST)) };
            key.check()?;
            return Err(RequestError::new(EEXIST, "TC IDR already exists"));
        }
        let old = self.actions.by_name.get(&wanted).filter(|_| existing);
        let estimator = context.estimator.or(old.and_then(|old| old.estimator));
        let config = self.check_action(config, old.map(|old| &old.config), estimator.is_some())?;
        let goto = match (action::goto_chain(config.action()), context.block) {
            (None, _) => None,
            (Some(_), None) => return Err(RequestError::new(EINVAL, "can't goto NULL proto/chain")),
            (Some(chain), Some(block)) => Some((block, chain)),
        };
        if let Some((block, chain)) = goto {
            self.filters.hold_chain(block, chain);
        }
        self.actions.generation += 1;
        if existing {
            let Some(action) = self.actions.by_name.get_mut(&wanted) else {
                return Err(RequestError::errno(ENOENT));
            };
            let left = std::mem::replace(&mut action.goto, goto);
            action.config = config;
            action.estimator = estimator;
            if let Some((block, chain)) = left {
                self.filters.release_chain(block, chain);
            }
            self.dress(wanted, entry);
            self.publish_keyed(wanted);
            return Ok((wanted, Made::Changed));
        }
        let name = match wanted.index {
            0 => Name { kind, index: self.actions.free(kind) },
            _ => wanted,
        };
        let counter = self.engine.add_tc_counter();
        let mut action = Action {
            config,
            refs: 1,
            binds: i32::from(bind),
            cookie: None,
            flags: entry.map_or(0, |entry| entry.flags),
            hw_stats: 0,
            asked_hw: AtomicBool::new(false),
            estimator,
            goto,
            by_filter: bind,
            installed: Instant::now(),
            id: TcActionId(u32::MAX),
            counter,
            ways: Vec::new(),
        };
        action.id = self.engine.add_tc_action(self.compile_action(&action));
        self.actions.by_name.insert(name, action);
        self.publish_keyed(name);
        self.dress(name, entry);
        Ok((name, Made::New))
    }

    /// What a request says of an action besides its options.
    fn dress(&mut self, name: Name, entry: Option<&Entry<'_>>) {
        if let (Some(action), Some(entry)) = (self.actions.by_name.get_mut(&name), entry) {
            if let Some(cookie) = entry.cookie {
                action.cookie = Some(cookie.into());
            }
            action.hw_stats = entry.hw_stats;
        }
    }

    /// What Linux checks of an action once it has its place.
    fn check_action(
        &self,
        config: Config,
        old: Option<&Config>,
        estimated: bool,
    ) -> Result<Config, RequestError> {
        let control = || {
            let valid = action::is_control(config.action());
            if valid { Ok(()) } else { Err(RequestError::new(EINVAL, "invalid control action")) }
        };
        match config.clone() {
            Config::Police(police) => {
                control()?;
                Ok(Config::Police(police.check(estimated)?))
            }
            Config::Gact(mut gact) => {
                control()?;
                // A change that says nothing of chance leaves it.
                if let (None, Some(Config::Gact(old))) = (gact.probability, old) {
                    gact.probability = old.probability;
                }
                Ok(Config::Gact(gact))
            }
            Config::Mirred(mut mirred) => {
                mirred.way()?;
                match (mirred.link, old) {
                    (0, None) => {
                        return Err(RequestError::new(EINVAL, "act_mirred: Must specify device or block"));
                    }
                    (0, Some(Config::Mirred(old))) => mirred.link = old.link,
                    _ => {}
                }
                control()?;
                if mirred.link != 0 && self.links.get(mirred.link).is_none() {
                    return Err(RequestError::errno(ENODEV));
                }
                Ok(Config::Mirred(mirred))
            }
            Config::Mpls(mpls) => {
                let (mpls, _) = mpls.check(self.routes.labels.default_ttl)?;
                control()?;
                Ok(Config::Mpls(mpls))
            }
            Config::Vlan(vlan) => {
                vlan.check()?;
                control()?;
                Ok(config)
            }
            Config::Skbedit(skbedit) => {
                skbedit.check()?;
                control()?;
                Ok(config)
            }
            Config::TunnelKey(key) => {
                key.check()?;
                control()?;
                Ok(config)
            }
        }
    }

    /// Makes the actions of a list, all or none.
    pub(super) fn init_actions(
        &mut self,
        list: &Attribute<'_>,
        context: &Context,
    ) -> Result<Vec<(Name, Made)>, RequestError> {
        let entries = Entry::list(list)?;
        let entries = entries.iter().map(Entry::parse).collect::<Result<Vec<_>, _>>()?;
        let mut kinds = Vec::new();
        for entry in &entries {
            let kind = entry.name()?;
            known(&kind).ok_or_else(|| action::unknown_kind(&kind))?;
            kinds.push(kind);
        }
        let mut made: Vec<(Name, Made)> = Vec::new();
        for (entry, kind) in entries.iter().zip(&kinds) {
            let one = self.init_action(kind, entry.options.as_ref(), Some(entry), context);
            let one = one.and_then(|one| {
                let checked = self.check_flags(one.0, entry, context);
                checked.inspect_err(|_| self.undo(one, context)).map(|()| one)
            });
            match one {
                Ok(one) => made.push(one),
                Err(refusal) => {
                    made.into_iter().for_each(|one| self.undo(one, context));
                    return Err(refusal);
                }
            }
        }
        Ok(made)
    }

    /// Whether an action is as much for hardware as its filter is.
    fn check_flags(&mut self, name: Name, entry: &Entry<'_>, context: &Context) -> Result<(), RequestError> {
        let mismatch = RequestError::new(EINVAL, "Mismatch between action and filter offload flags");
        let Some(action) = self.actions.by_name.get_mut(&name) else { return Ok(()) };
        if context.block.is_none() {
            // Linux fails to find hardware that does what software is not to do.
            return if entry.flags & action::SKIP_SW != 0 {
                Err(RequestError::errno(EINVAL))
            } else {
                Ok(())
            };
        }
        let wanted = action.flags & (action::SKIP_HW | action::SKIP_SW);
        let given = (context.flags & 3) << 1;
        if action.by_filter {
            if wanted & !given != 0 {
                return Err(mismatch);
            }
            action.flags |= given;
            return Ok(());
        }
        if wanted == given { Ok(()) } else { Err(mismatch) }
    }

    /// Takes back what [`Router::init_action`] did.
    fn undo(&mut self, (name, made): (Name, Made), context: &Context) {
        match made {
            Made::New | Made::Bound => self.release_action(name, context.block.is_some()),
            Made::Changed => {}
        }
    }

    /// The actions of a filter's request: a list, or an old-style policer.
    ///
    /// # Errors
    /// What is wrong with one of them; none is then made.
    pub(crate) fn init_exts(
        &mut self,
        list: Option<Attribute<'_>>,
        police: Option<Attribute<'_>>,
        context: &Context,
    ) -> Result<Exts, RequestError> {
        if let Some(police) = police {
            let (name, _) = self.init_action("police", Some(&police), None, context)?;
            return Ok(Exts::Police(name));
        }
        let Some(list) = list else { return Ok(Exts::None) };
        let made = self.init_actions(&list, context)?;
        if made.is_empty() {
            return Ok(Exts::None);
        }
        Ok(Exts::List(made.into_iter().map(|(name, _)| name).collect()))
    }

    /// A filter has no more use for its actions.
    pub(crate) fn release_exts(&mut self, exts: &Exts) {
        exts.names().iter().for_each(|name| self.release_action(*name, true));
    }

    /// Drops a reference, and the action with the last one.
    pub(super) fn release_action(&mut self, name: Name, bind: bool) {
        let Some(action) = self.actions.by_name.get_mut(&name) else { return };
        self.actions.generation += 1;
        action.refs -= 1;
        if bind {
            action.binds -= 1;
        }
        if action.refs <= 0 {
            self.remove_action(name);
        }
    }

    fn remove_action(&mut self, name: Name) {
        self.actions.generation += 1;
        if let Some(action) = self.actions.remove(name) {
            self.engine.remove_tc_action(action.id);
            self.engine.remove_tc_counter(action.counter);
            self.release_ways(action.ways);
            if let Some((block, chain)) = action.goto {
                self.filters.release_chain(block, chain);
            }
        }
    }

    /// Redirects to a link that is no more lead nowhere.
    pub(crate) fn forget_link_of_actions(&mut self, link: u32) {
        let mut changed = Vec::new();
        for (name, action) in &mut self.actions.by_name {
            if let Config::Mirred(mirred) = &mut action.config
                && mirred.link == link
            {
                mirred.link = 0;
                changed.push(*name);
            }
        }
        changed.into_iter().for_each(|name| self.publish_action(name));
    }

    /// What is shown of an action; `refs` are those of the request that asks.
    pub(super) fn shown_action<'a>(&'a self, name: Name, action: &'a Action) -> Shown<'a> {
        let count = self.engine.tc_count(action.counter);
        let now = self.packet_time();
        let ago = |time: u64| now.saturating_sub(time) / 10_000_000;
        let install = action.installed.elapsed().as_millis() as u64 / 10;
        let used = |time: u64, unused: u64| if time == 0 { unused } else { ago(time).min(install) };
        Shown {
            config: &action.config,
            index: name.index,
            refs: action.refs,
            binds: action.binds,
            cookie: action.cookie.as_deref(),
            flags: action.flags,
            hw_stats: action.hw_stats,
            asked_hw: action.asked_hw.load(Relaxed),
            times: Times {
                install,
                last_use: used(count.last_used, install),
                expires: 0,
                first_use: used(count.first_used, 0),
            },
            counts: Counts {
                bytes: count.bytes,
                packets: count.packets,
                drops: count.drops as u32,
                overlimits: count.overlimits as u32,
                rate: self.engine.tc_rate(action.id, now),
            },
        }
    }

    /// Writes the actions of a filter: `list` and `police` are the attributes that they go into.
    pub(crate) fn write_exts(&self, reply: &mut Reply<'_>, exts: &Exts, list: u16, police: u16) {
        let get = |name: Name| self.actions.by_name.get(&name).map(|action| (name, action));
        match exts {
            Exts::None => {}
            Exts::List(names) => {
                let nest = reply.nest_unflagged(list);
                for ((name, action), number) in names.iter().filter_map(|name| get(*name)).zip(1..) {
                    let one = reply.nest_unflagged(number);
                    self.shown_action(name, action).write(reply);
                    reply.end(one);
                }
                reply.end(nest);
            }
            Exts::Police(name) => {
                if let Some((name, action)) = get(*name) {
                    let nest = reply.nest_unflagged(police);
                    self.shown_action(name, action).write_options(reply);
                    reply.end(nest);
                }
            }
        }
    }

    /// Writes the actions of a filter without their options.
    pub(crate) fn write_terse_exts(&self, reply: &mut Reply<'_>, exts: &Exts, list: u16) {
        let nest = reply.nest_unflagged(list);
        for (name, number) in exts.names().iter().zip(1..) {
            if let Some(action) = self.actions.by_name.get(name) {
                let one = reply.nest_unflagged(number);
                self.shown_action(*name, action).write_terse(reply, false);
                reply.end(one);
            }
        }
        reply.end(nest);
    }

    /// Writes `TCA_STATS` of a filter with an old-style policer.
    pub(crate) fn write_exts_stats(&self, reply: &mut Reply<'_>, exts: &Exts) {
        if let Exts::Police(name) = exts
            && let Some(action) = self.actions.by_name.get(name)
        {
            self.shown_action(*name, action).counts.write_compat(reply);
        }
    }

    /// Whoever asks for the statistics of a filter that could be in hardware, learns that its actions are not.
    pub(crate) fn ask_no_hardware(&self, exts: &Exts) {
        for name in exts.names() {
            if let Some(action) = self.actions.by_name.get(name) {
                action.asked_hw.store(false, Relaxed);
            }
        }
    }
}
