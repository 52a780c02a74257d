//! Variables of the kernel's that say what the router does: `net.ipv6.conf.IF.seg6_require_hmac` and `accept_ra`,
//! `net.core.fb_tunnels_only_for_init_net`. The kernel reports no write of one, so it is read again and
//! again.

use std::{
    fs,
    time::{Duration, Instant},
};
use underpass_control::{read_sysctl, write_sysctl};

use underpass_control::{Link, Router};

use super::host_protocols;

/// How long what is written may be unknown to the router.
const AGE: Duration = Duration::from_secs(1);

/// When the variables were last read.
#[derive(Debug)]
pub struct Variables(Instant);

impl Default for Variables {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Variables {
    /// How long it is until the next time.
    pub fn due(&self) -> Duration {
        AGE.saturating_sub(self.0.elapsed())
    }

    /// Reads those of the devices that packets come in by, and of VRFs, if it is time.
    pub fn follow(&mut self, router: &mut Router) {
        if !self.due().is_zero() {
            return;
        }
        self.0 = Instant::now();
        host_protocols::follow(router);
        read_fallback_tunnels(router);
        let seen = |link: &Link| link.attached.is_some() || link.vrf_table().is_some() || link.vlan.is_some();
        let links = router.links().filter(|link| seen(link));
        let names: Vec<(u32, String)> = links.map(|link| (link.index, link.name.clone())).collect();
        names.iter().for_each(|(index, name)| read(router, *index, name));
    }
}

/// Reads those of a device. Where the kernel has none, the router's own stay as they are.
pub fn read(router: &mut Router, index: u32, device: &str) {
    let accept = fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{device}/accept_ra"));
    // As where `forwarding` is on.
    router.ignore_advertised(index, accept.is_ok_and(|accept| accept.trim() == "1"));
    let path = format!("ipv6/conf/{device}/seg6_require_hmac");
    let Ok(value) = fs::read_to_string(format!("/proc/sys/net/{path}")) else { return };
    take_over(router, &path, &value);
}

/// Reads whether fallback devices of tunnels are made. Only the initial namespace has the variable; there 1 is as good as
/// 0.
pub fn read_fallback_tunnels(router: &mut Router) {
    const PATH: &str = "core/fb_tunnels_only_for_init_net";
    let Ok(value) = fs::read_to_string(format!("/proc/sys/net/{PATH}")) else { return };
    take_over(router, PATH, if value.trim() == "2" { "2\n" } else { "0\n" });
}

fn take_over(router: &mut Router, path: &str, value: &str) {
    if read_sysctl(router, path).is_ok_and(|known| known != value)
        && let Err(error) = write_sysctl(router, path, value.as_bytes())
    {
        tracing::warn!("{path}: {error}");
    }
}
