//! Figures of a proxy under load: CPU a request, requests a second, latencies.

use std::collections::BTreeMap;
use std::time::Duration;

use super::load::{self, Latency, Protocol};
use super::process::Running;

/// Connections of HTTP/1, or streams of HTTP/2, that are always busy at saturation.
pub const CLIENTS: usize = 32;
/// Requests a second where arrivals do not wait for answers.
pub const RATE: u32 = 1_000;
/// Of bodies above this many bytes …
const LARGE_BYTES: usize = 64 * 1024;
/// … so many requests a second, which the machine can carry.
const LARGE_RATE: u32 = 100;
/// Both protocols.
pub const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// What one load showed.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    pub cpu_us: f64,
    pub rate: f64,
    pub saturated: Latency,
    pub open: Latency,
}

/// All figures by proxy and by what they are of.
pub type Figures<T> = BTreeMap<(usize, String), Vec<T>>;

pub fn title(protocol: Protocol, bytes: usize) -> String {
    let protocol = match protocol {
        Protocol::Http1 => "HTTP/1.1",
        Protocol::Http2 => "h2c",
    };
    format!("{protocol}, {bytes} B")
}

/// Returns how many requests with such bodies a second there are in the open loop.
pub const fn open_rate(bytes: usize) -> u32 {
    if bytes > LARGE_BYTES {
        LARGE_RATE
    } else {
        RATE
    }
}

/// Returns what a request took of CPU, in µs, how many there were a second, and their latencies.
pub async fn saturate(
    running: &Running,
    protocol: Protocol,
    bytes: usize,
    span: Duration,
) -> anyhow::Result<(f64, f64, Latency)> {
    let address = running.address_of(protocol);
    // Connections, caches and estimates are warm before anything counts.
    load::saturate(address, protocol, bytes, CLIENTS, span / 8).await?;
    let before = running.cpu_seconds();
    let (count, saturated) = load::saturate(address, protocol, bytes, CLIENTS, span).await?;
    let cpu = running.cpu_seconds() - before;
    let rate = count as f64 / span.as_secs_f64();
    Ok((cpu * 1e6 / count as f64, rate, saturated))
}

pub async fn measure(
    running: &Running,
    protocol: Protocol,
    bytes: usize,
    span: Duration,
) -> anyhow::Result<Shown> {
    let (cpu_us, rate, saturated) = saturate(running, protocol, bytes, span).await?;
    let address = running.address_of(protocol);
    let open = load::at_rate(address, protocol, bytes, open_rate(bytes), span).await?;
    Ok(Shown {
        cpu_us,
        rate,
        saturated,
        open,
    })
}

pub fn median<T: Copy>(values: Option<&Vec<T>>, figure: impl Fn(&T) -> f64) -> Option<f64> {
    let mut figures: Vec<f64> = values?.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

pub fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
}
