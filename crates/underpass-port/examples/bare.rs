//! What a driver costs without a router: packets go from port to port untouched.
//!
//! `bare generate DRIVER DEV SIZE SECONDS` sends UDP over IPv6 to 02:00:00:00:00:02.
//! `bare forward auto|xdp|generic|packet IN OUT SECONDS` forwards both ways and says how fast.

use std::error::Error;
use std::time::{Duration, Instant};

use underpass_engine::worker::Burst;
use underpass_port::index_of;
use underpass_port::kernel_frames::{KernelFrames, OfDevice};
use underpass_port::live::{Device, Driver, LivePort};
use underpass_port::xdp::Memory;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["generate", driver, device, size, seconds] => {
            generate(driver_of(driver)?, device, size.parse()?, seconds.parse()?)
        }
        ["forward", driver, from, to, seconds] => forward(driver, [from, to], seconds.parse()?),
        _ => Err("bare generate DRIVER DEV SIZE SECONDS | bare forward DRIVER IN OUT SECONDS".into()),
    }
}

fn open(
    driver: Driver,
    name: &str,
    kernel_frames: &KernelFrames,
    memory: &Memory,
    pool: &mut underpass_engine::buffer::Pool,
) -> Result<(Device, LivePort), Box<dyn Error>> {
    kernel_frames.set_device(index_of(name)?, OfDevice::default())?;
    let mut device = Device::attach(name, driver, kernel_frames)?;
    device.share_among(1);
    eprintln!("{name}: {} ({})", device.driver(), device.why());
    let queues: Vec<u32> = (0..device.queues()).collect();
    let port = device.port(&queues, 1500, memory, pool)?;
    Ok((device, port))
}

fn driver_of(name: &str) -> Result<Driver, Box<dyn Error>> {
    match name {
        "auto" => Ok(Driver::Auto),
        "xdp" => Ok(Driver::Xdp),
        "generic" => Ok(Driver::XdpGeneric),
        "packet" => Ok(Driver::Packet),
        other => Err(format!("no driver {other}").into()),
    }
}

/// Nanoseconds that this thread has had a core.
fn spent() -> Result<f64, Box<dyn Error>> {
    let clocks = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(clocks.split_whitespace().next().unwrap_or("0").parse()?)
}

fn generate(driver: Driver, name: &str, size: usize, seconds: u64) -> Result<(), Box<dyn Error>> {
    let (memory, mut pool) = Memory::new(8192, 0)?;
    let kernel_frames = KernelFrames::new();
    let (_device, mut port) = open(driver, name, &kernel_frames, &memory, &mut pool)?;
    let mut frame = vec![0_u8; size];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    frame[12..22].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, (size - 54) as u8, 17, 64]);
    frame[22] = 0xfd;
    frame[38] = 0xfd;
    frame[53] = 9;
    let (end, mut sent) = (Instant::now() + Duration::from_secs(seconds), 0);
    while Instant::now() < end {
        let mut burst = Burst::new();
        while let Some(mut packet) = (!burst.is_full()).then(|| pool.take()).flatten() {
            packet.set(underpass_engine::buffer::HEADROOM, &frame).map_err(|_| "too long")?;
            burst.push(packet);
        }
        sent += burst.len();
        port.send(&mut pool, burst.drain(..));
    }
    println!("generated {} kpps, {:?}", sent / 1000 / seconds as usize, port.tally());
    println!("{:.0} ns of a core a packet", spent()? / sent as f64);
    port.close(&mut pool);
    Ok(())
}

fn forward(driver: &str, names: [&str; 2], seconds: u64) -> Result<(), Box<dyn Error>> {
    let driver = driver_of(driver)?;
    let (memory, mut pool) = Memory::new(16384, 512)?;
    let kernel_frames = KernelFrames::new();
    let (_a, a) = open(driver, names[0], &kernel_frames, &memory, &mut pool)?;
    let (_b, b) = open(driver, names[1], &kernel_frames, &memory, &mut pool)?;
    let mut ports = [a, b];
    let (start, mut forwarded) = (Instant::now(), 0);
    let (end, mut burst) = (start + Duration::from_secs(seconds), Burst::new());
    while Instant::now() < end {
        let before = forwarded;
        for from in 0..2 {
            ports[from].receive(&mut pool, &mut burst);
            if !burst.is_empty() {
                forwarded += burst.len();
                ports[1 - from].send(&mut pool, burst.drain(..));
            }
        }
        if forwarded == before {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    let rate = forwarded as f64 / start.elapsed().as_secs_f64() / 1000.0;
    println!("forwarded {forwarded}: {rate:.0} kpps; {:?} {:?}", ports[0].tally(), ports[1].tally());
    println!("{:.0} ns of a core a packet", spent()? / forwarded as f64);
    ports.into_iter().for_each(|port| port.close(&mut pool));
    println!("{} slots back", pool.available());
    Ok(())
}
