//! Actions that come, change and go.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use libc::{EEXIST, EINVAL, ENODEV, ENOENT, EOPNOTSUPP};
use underpass_engine::tables::TcActionId;
use underpass_netlink::tc::action::{self, Config, Counts, Entry, Shown, Times};
use underpass_netlink::{Attribute, Reply, RequestError};

use super::compile::{compile_action, publish_action};
use super::tunnel_key::{publish_keyed, release_ways};
use super::{Action, Context, Exts, Made, Name, known};
use crate::Router;
use crate::psample::{hold_group, release_group};

/// The packet path's name of an action.
pub(crate) fn action_id(router: &Router, name: Name) -> Option<TcActionId> {
    router.actions.by_name.get(&name).map(|action| action.id)
}

/// The policer's burst where it is too small for what the links carry, in bytes, and the length of a segment.
pub(crate) fn small_burst(router: &Router, name: Name) -> Option<(u64, u32)> {
    let Config::Police(police) = &router.actions.by_name.get(&name)?.config else { return None };
    let rate = police.rate?;
    let burst =
        u128::from(police.burst) * u128::from(underpass_netlink::tc::ticks_to_ns(1)) * u128::from(rate.bytes);
    let burst = (burst / 1_000_000_000) as u64;
    let longest = router.links.iter().filter(|link| link.port().is_some()).map(|link| link.mtu).max()?;
    let packet = longest.min(police.mtu);
    (burst < packet.into()).then_some((burst, packet))
}

/// Makes an action of one element of a list, or finds it.
fn init_action(
    router: &mut Router,
    kind: &str,
    options: Option<&Attribute<'_>>,
    entry: Option<&Entry<'_>>,
    context: &Context,
) -> Result<(Name, Made), RequestError> {
    let config = Config::parse(kind, options)?;
    let bind = context.block.is_some();
    let kind = config.kind();
    let wanted = Name { kind, index: config.index() };
    let existing = wanted.index != 0 && router.actions.by_name.contains_key(&wanted);
    if existing && bind {
        if let Some(action) = router.actions.by_name.get_mut(&wanted) {
            action.refs += 1;
            action.binds += 1;
        }
        dress(router, wanted, entry);
        if kind == "sample" {
            // Its cookie goes along with samples.
            publish_action(router, wanted);
        }
        return Ok((wanted, Made::Bound));
    }
    if existing && !context.replace {
        // Linux looks at what these two are to do before it looks whether there is one.
        match &config {
            Config::TunnelKey(key) => {
                key.check()?;
                return Err(RequestError::new(EEXIST, "TC IDR already exists"));
            }
            Config::Mirred(mirred) => _ = mirred.way()?,
            _ => {}
        }
        return Err(RequestError::errno(EEXIST));
    }
    let old = router.actions.by_name.get(&wanted).filter(|_| existing);
    let estimator = context.estimator.or(old.and_then(|old| old.estimator));
    let config = check_action(router, config, old.map(|old| &old.config), estimator.is_some())?;
    let goto = match (action::goto_chain(config.action()), context.block) {
        (None, _) => None,
        (Some(_), None) => return Err(RequestError::new(EINVAL, "can't goto NULL proto/chain")),
        (Some(chain), Some(block)) => Some((block, chain)),
    };
    if let Some((block, chain)) = goto {
        router.filters.hold_chain(block, chain);
    }
    router.actions.generation += 1;
    hold_samples(router, &config);
    if existing {
        let Some(action) = router.actions.by_name.get_mut(&wanted) else {
            return Err(RequestError::errno(ENOENT));
        };
        let left = std::mem::replace(&mut action.goto, goto);
        let before = std::mem::replace(&mut action.config, config);
        action.estimator = estimator;
        release_samples(router, &before);
        if let Some((block, chain)) = left {
            router.filters.release_chain(block, chain);
        }
        dress(router, wanted, entry);
        publish_keyed(router, wanted);
        return Ok((wanted, Made::Changed));
    }
    let name = match wanted.index {
        0 => Name { kind, index: router.actions.free(kind) },
        _ => wanted,
    };
    let counter = router.engine.add_tc_counter();
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
    action.id = router.engine.add_tc_action(compile_action(router, &action));
    router.actions.by_name.insert(name, action);
    dress(router, name, entry);
    publish_keyed(router, name);
    Ok((name, Made::New))
}

/// An action of this kind is about to be: its group of samples has to be there.
fn hold_samples(router: &mut Router, config: &Config) {
    if let Config::Sample(sample) = config {
        hold_group(router, sample.group.unwrap_or_default());
    }
}

/// It is no more.
fn release_samples(router: &mut Router, config: &Config) {
    if let Config::Sample(sample) = config {
        release_group(router, sample.group.unwrap_or_default());
    }
}

/// Publishes all actions of a kind.
pub(crate) fn publish_kind(router: &mut Router, kind: &'static str) {
    let names: Vec<_> = router.actions.of_kind(kind).map(|(name, _)| name).collect();
    names.into_iter().for_each(|name| publish_action(router, name));
}

/// What a request says of an action besides its options.
fn dress(router: &mut Router, name: Name, entry: Option<&Entry<'_>>) {
    if let (Some(action), Some(entry)) = (router.actions.by_name.get_mut(&name), entry) {
        if let Some(cookie) = entry.cookie {
            action.cookie = Some(cookie.into());
        }
        action.hw_stats = entry.hw_stats;
    }
}

/// What Linux checks of an action once it has its place.
fn check_action(
    router: &Router,
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
            if mirred.link != 0 && router.links.get(mirred.link).is_none() {
                return Err(RequestError::errno(ENODEV));
            }
            Ok(Config::Mirred(mirred))
        }
        Config::Mpls(mpls) => {
            let (mpls, _) = mpls.check(router.routes.labels.default_ttl)?;
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
        Config::Sample(mut sample) => {
            let (rate, _) = sample.required()?;
            control()?;
            if rate == 0 {
                return Err(RequestError::new(EINVAL, "invalid sample rate"));
            }
            // A change that says nothing of a length leaves it.
            if let (None, Some(Config::Sample(old))) = (sample.truncate, old) {
                sample.truncate = old.truncate;
            }
            Ok(Config::Sample(sample))
        }
        Config::Csum(_) => {
            control()?;
            Ok(config)
        }
        Config::Pedit(pedit) => {
            pedit.check()?;
            control()?;
            Ok(config)
        }
    }
}

/// Makes the actions of a list, all or none.
pub(super) fn init_actions(
    router: &mut Router,
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
        let one = init_action(router, kind, entry.options.as_ref(), Some(entry), context);
        let one = one.and_then(|one| {
            let checked = check_flags(router, one.0, entry, context);
            checked.inspect_err(|_| undo(router, one, context)).map(|()| one)
        });
        match one {
            Ok(one) => made.push(one),
            Err(error) => {
                made.into_iter().for_each(|one| undo(router, one, context));
                return Err(error);
            }
        }
    }
    Ok(made)
}

/// Whether an action is as much for hardware as its filter is.
fn check_flags(
    router: &mut Router,
    name: Name,
    entry: &Entry<'_>,
    context: &Context,
) -> Result<(), RequestError> {
    let mismatch = RequestError::new(EINVAL, "Mismatch between action and filter offload flags");
    let Some(action) = router.actions.by_name.get_mut(&name) else { return Ok(()) };
    if context.block.is_none() {
        // Linux fails to find hardware that does what software is not to do.
        let refused = match &action.config {
            Config::Pedit(_) => action.config.warning().map(|text| RequestError::new(EOPNOTSUPP, text)),
            _ => None,
        };
        let refused = refused.unwrap_or(RequestError::errno(EINVAL));
        return if entry.flags & action::SKIP_SW != 0 { Err(refused) } else { Ok(()) };
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

/// Takes back what [`init_action`] did.
fn undo(router: &mut Router, (name, made): (Name, Made), context: &Context) {
    match made {
        Made::New | Made::Bound => release_action(router, name, context.block.is_some()),
        Made::Changed => {}
    }
}

/// The actions of a filter's request: a list, or an old-style policer.
///
/// # Errors
/// What is wrong with one of them; none is then made.
pub(crate) fn init_exts(
    router: &mut Router,
    list: Option<Attribute<'_>>,
    police: Option<Attribute<'_>>,
    context: &Context,
) -> Result<Exts, RequestError> {
    if let Some(police) = police {
        let (name, _) = init_action(router, "police", Some(&police), None, context)?;
        return Ok(Exts::Police(name));
    }
    let Some(list) = list else { return Ok(Exts::None) };
    let made = init_actions(router, &list, context)?;
    if made.is_empty() {
        return Ok(Exts::None);
    }
    Ok(Exts::List(made.into_iter().map(|(name, _)| name).collect()))
}

/// A filter has no more use for its actions.
pub(crate) fn release_exts(router: &mut Router, exts: &Exts) {
    exts.names().iter().for_each(|name| release_action(router, *name, true));
}

/// Drops a reference, and the action with the last one.
pub(super) fn release_action(router: &mut Router, name: Name, bind: bool) {
    let Some(action) = router.actions.by_name.get_mut(&name) else { return };
    router.actions.generation += 1;
    action.refs -= 1;
    if bind {
        action.binds -= 1;
    }
    if action.refs <= 0 {
        remove_action(router, name);
    }
}

fn remove_action(router: &mut Router, name: Name) {
    router.actions.generation += 1;
    if let Some(action) = router.actions.remove(name) {
        router.engine.remove_tc_action(action.id);
        release_samples(router, &action.config);
        router.engine.remove_tc_counter(action.counter);
        release_ways(router, action.ways);
        if let Some((block, chain)) = action.goto {
            router.filters.release_chain(block, chain);
        }
    }
}

/// Redirects to a link that is no more lead nowhere.
pub(crate) fn forget_link_of_actions(router: &mut Router, link: u32) {
    let mut changed = Vec::new();
    for (name, action) in &mut router.actions.by_name {
        if let Config::Mirred(mirred) = &mut action.config
            && mirred.link == link
        {
            mirred.link = 0;
            changed.push(*name);
        }
    }
    changed.into_iter().for_each(|name| publish_action(router, name));
}

/// What is shown of an action; `refs` are those of the request that asks.
pub(super) fn shown_action<'a>(router: &'a Router, name: Name, action: &'a Action) -> Shown<'a> {
    let count = router.engine.tc_count(action.counter);
    let now = router.packet_time();
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
            rate: router.engine.tc_rate(action.id, now),
        },
    }
}

/// Writes the actions of a filter: `list` and `police` are the attributes that they go into.
pub(crate) fn write_exts(router: &Router, reply: &mut Reply<'_>, exts: &Exts, list: u16, police: u16) {
    let get = |name: Name| router.actions.by_name.get(&name).map(|action| (name, action));
    match exts {
        Exts::None => {}
        Exts::List(names) => {
            let nest = reply.nest_unflagged(list);
            for ((name, action), number) in names.iter().filter_map(|name| get(*name)).zip(1..) {
                let one = reply.nest_unflagged(number);
                shown_action(router, name, action).write(reply);
                reply.end(one);
            }
            reply.end(nest);
        }
        Exts::Police(name) => {
            if let Some((name, action)) = get(*name) {
                let nest = reply.nest_unflagged(police);
                shown_action(router, name, action).write_options(reply);
                reply.end(nest);
            }
        }
    }
}

/// Writes the actions of a filter without their options.
pub(crate) fn write_terse_exts(router: &Router, reply: &mut Reply<'_>, exts: &Exts, list: u16) {
    let nest = reply.nest_unflagged(list);
    for (name, number) in exts.names().iter().zip(1..) {
        if let Some(action) = router.actions.by_name.get(name) {
            let one = reply.nest_unflagged(number);
            shown_action(router, *name, action).write_terse(reply, false);
            reply.end(one);
        }
    }
    reply.end(nest);
}

/// Writes `TCA_STATS` of a filter with an old-style policer.
pub(crate) fn write_exts_stats(router: &Router, reply: &mut Reply<'_>, exts: &Exts) {
    if let Exts::Police(name) = exts
        && let Some(action) = router.actions.by_name.get(name)
    {
        shown_action(router, *name, action).counts.write_compat(reply);
    }
}

/// Whoever asks for the statistics of a filter that could be in hardware, learns that its actions are not.
pub(crate) fn count_no_hardware(router: &Router, exts: &Exts) {
    for name in exts.names() {
        if let Some(action) = router.actions.by_name.get(name) {
            action.asked_hw.store(false, Relaxed);
        }
    }
}
