//! What is asked of the kernel about a device by its name, and its sysctls.

#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::lifecycle::{Changed, Left, Lock};

/// Sysctls of devices that the router changes.
const FORWARDING: &str = "forwarding";
const ACCEPT_LOCAL: &str = "accept_local";

fn request(name: &str) -> io::Result<(OwnedFd, libc::ifreq)> {
    let control = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: all zero is a valid `struct ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok((control, request))
}

fn ioctl(control: &OwnedFd, code: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: these requests read and write a `struct ifreq`.
    let done = unsafe { libc::ioctl(control.as_raw_fd(), code as _, &raw mut *request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether no device of this name has this index any more.
pub fn is_gone(index: u32, name: &str) -> bool {
    underpass_port::index_of(name).ok() != Some(index)
}

/// Whether a device sends and receives Ethernet frames, and is not the loopback device.
pub fn is_ethernet(name: &str) -> bool {
    let kind = || {
        let (control, mut request) = request(name)?;
        ioctl(&control, libc::SIOCGIFHWADDR as _, &mut request)?;
        // SAFETY: the kernel has filled in this member.
        Ok::<_, io::Error>(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family })
    };
    kind().is_ok_and(|kind| kind == libc::ARPHRD_ETHER)
}

/// The devices of the network namespace that send and receive Ethernet frames, by index.
pub fn ethernet_devices() -> BTreeMap<u32, String> {
    let names = nix::net::if_::if_nameindex();
    let names = names.iter().flat_map(|names| names.iter());
    names
        .map(|device| (device.index(), device.name().to_string_lossy().into_owned()))
        .filter(|(_, name)| is_ethernet(name))
        .collect()
}

/// Sets the longest packet that a device takes.
///
/// # Errors
/// What the kernel says.
pub fn set_mtu(name: &str, mtu: u32) -> io::Result<()> {
    let (control, mut request) = request(name)?;
    request.ifr_ifru.ifru_mtu = mtu as libc::c_int;
    ioctl(&control, libc::SIOCSIFMTU as _, &mut request)
}

/// Brings a device up.
///
/// # Errors
/// What the kernel says.
pub fn set_up(name: &str) -> io::Result<()> {
    let (control, mut request) = request(name)?;
    ioctl(&control, libc::SIOCGIFFLAGS as _, &mut request)?;
    // SAFETY: the kernel has filled in this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    ioctl(&control, libc::SIOCSIFFLAGS as _, &mut request)
}

/// Sets a sysctl of a device of the router's own, which goes with it.
fn set(path: String, value: &str) {
    if let Err(error) = fs::write(&path, value) {
        tracing::debug!("{path}: {error}");
    }
}

/// The file of a sysctl of a device, by the name that the device has now; `None` if it is gone.
fn file(device: u32, family: &str, name: &str) -> Option<PathBuf> {
    let device = nix::net::if_::if_indextoname(device).ok()?;
    Some(format!("/proc/sys/net/{family}/conf/{}/{name}", device.to_str().ok()?).into())
}

/// Puts a sysctl back; of a device that is gone there is nothing left. The file that was written.
fn put_back(changed: &Changed) -> Option<PathBuf> {
    let path = file(changed.device, &changed.family, &changed.name)?;
    if let Err(error) = fs::write(&path, &changed.before) {
        tracing::debug!("{}: {error}", path.display());
    }
    Some(path)
}

/// The sysctls of devices that the router has changed, and what they were before.
pub struct Sysctls {
    lock: Lock,
    left: Left,
}

impl Sysctls {
    /// Puts back what a daemon that was killed has left, and begins anew.
    pub fn new(mut lock: Lock) -> Self {
        for path in lock.left().sysctls.iter().filter_map(put_back) {
            tracing::info!("{}: as it was before the router that was here", path.display());
        }
        let mut sysctls =
            Self { lock, left: Left { namespace: super::lifecycle::namespace_cookie(), ..Left::default() } };
        sysctls.write_down();
        sysctls
    }

    /// What is received by a device is not forwarded by the kernel any more, but by the router.
    pub fn stop_forwarding(&mut self, device: u32) {
        for family in ["ipv4", "ipv6"] {
            self.change(device, family, FORWARDING, "0");
        }
    }

    /// Gives a sysctl another value, for as long as the router is there.
    fn change(&mut self, device: u32, family: &str, name: &str, value: &str) {
        let Some(path) = file(device, family, name) else { return };
        let Ok(before) = fs::read_to_string(&path) else { return };
        if before.trim() == value {
            return;
        }
        let (family, name) = (family.to_owned(), name.to_owned());
        self.left.sysctls.push(Changed { device, family, name, before });
        self.write_down();
        if let Err(error) = fs::write(&path, value) {
            tracing::warn!("{}: {error}", path.display());
        }
    }

    /// The device that stands for the host takes what comes from anywhere.
    pub fn host_device(&self, device: &str, vrf: bool) {
        // The larger of this and `all` counts. With the device's own address, 192.0.0.8, a loose check passes every source that
        // the kernel has a route to.
        let all = fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter").unwrap_or_default();
        if all.trim() != "0" {
            tracing::warn!(
                "net.ipv4.conf.all.rp_filter is {}: of the IPv4 packets that the router hands over by {device} the kernel drops \
                 those whose source it has no route to; with 0 there it takes all",
                all.trim()
            );
        }
        let reverse_path = if vrf || all.trim() == "0" { "0" } else { "2" };
        set(format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"), reverse_path);
        set(format!("/proc/sys/net/ipv6/conf/{device}/addr_gen_mode"), "1");
        set(format!("/proc/sys/net/ipv6/conf/{device}/accept_ra"), "0");
        match vrf {
            true => Self::errors_reach_host(device),
            false => self.forwards(device),
        }
    }

    /// The kernel forwards what the router hands over to it by this device, whatever it does by others: packets that
    /// only the kernel knows the way of. What the router has made itself has an address of the host's for its source.
    pub fn forwards(&self, device: &str) {
        set(format!("/proc/sys/net/ipv4/conf/{device}/forwarding"), "1");
        // IPv6 needs Linux 6.17, or forwarding by all devices.
        set(format!("/proc/sys/net/ipv6/conf/{device}/force_forwarding"), "1");
        Self::errors_reach_host(device);
    }

    /// ICMP errors about what the host has sent by a device of the router's come back from an address of the host's own,
    /// and so does what the host sends to itself in a VRF. What comes from elsewhere with such a source is dropped by the
    /// workers.
    pub fn errors_reach_host(device: &str) {
        set(format!("/proc/sys/net/ipv4/conf/{device}/accept_local"), "1");
    }

    /// A device in a VRF of the router's may be cabled to one in another. The kernel takes the addresses of both for its
    /// own, and would not answer ARP requests of the one at the other. What else comes in there is the workers'.
    pub fn enslaved(&mut self, device: u32) {
        self.change(device, "ipv4", ACCEPT_LOCAL, "1");
    }

    /// The device has left its VRF.
    pub fn set_free(&mut self, device: u32) {
        self.undo(|changed| changed.device == device && changed.name == ACCEPT_LOCAL);
    }

    /// No packet of the kernel's own goes to the device of a return path.
    pub fn return_path(&self, device: &str) {
        set(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), "1");
    }

    /// Puts back what was changed of a device when it was attached.
    pub fn restore(&mut self, device: u32) {
        self.undo(|changed| changed.device == device && changed.name == FORWARDING);
    }

    /// Puts back everything.
    pub fn restore_all(&mut self) {
        self.undo(|_| true);
    }

    fn undo(&mut self, which: impl Fn(&Changed) -> bool) {
        let undone: Vec<Changed> = self.left.sysctls.extract_if(.., |changed| which(changed)).collect();
        if undone.is_empty() {
            return;
        }
        for changed in &undone {
            put_back(changed);
        }
        self.write_down();
    }

    fn write_down(&mut self) {
        if let Err(error) = self.lock.leave(&self.left) {
            tracing::warn!("what the router changes cannot be written down: {error}");
        }
    }
}
