//! Figures of a proxy under load: CPU per request, requests a second, latencies.

use std::collections::BTreeMap;
use std::time::Duration;

use super::load::{self, Latency, Protocol};
use super::process::Running;

/// Number of connections of HTTP/1, or streams of HTTP/2, kept busy at saturation.
pub const CLIENTS: usize = 32;
/// Requests a second in the open loop.
pub const RATE: u32 = 1_000;
/// Body size in bytes above which the open loop has the rate [`LARGE_RATE`].
const LARGE_BYTES: usize = 64 * 1024;
/// Requests a second in the open loop with large bodies, which the machine can carry.
const LARGE_RATE: u32 = 100;
/// The measured protocols, each with all loads.
pub const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// Figures of one load.
#[derive(Debug, Clone, Copy)]
pub struct LoadFigures {
    pub cpu_us: f64,
    pub rate: f64,
    pub saturated: Latency,
    pub open: Latency,
}

/// Figures by index of the proxy and name of the load.
pub type Figures<T> = BTreeMap<(usize, String), Vec<T>>;

pub fn title(protocol: Protocol, bytes: usize) -> String {
    let protocol = match protocol {
        Protocol::Http1 => "HTTP/1.1",
        Protocol::Http2 => "h2c",
    };
    format!("{protocol}, {bytes} B")
}

/// Returns the open loop's rate for bodies of this size, in requests a second.
pub const fn open_rate(bytes: usize) -> u32 {
    if bytes > LARGE_BYTES {
        LARGE_RATE
    } else {
        RATE
    }
}

/// Measures at saturation; returns CPU per request in µs, requests a second, and latencies.
pub async fn saturate(
    running: &Running,
    protocol: Protocol,
    bytes: usize,
    span: Duration,
) -> anyhow::Result<(f64, f64, Latency)> {
    let address = running.address_of(protocol);
    // A warm-up for connections, caches and estimates.
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
) -> anyhow::Result<LoadFigures> {
    let (cpu_us, rate, saturated) = saturate(running, protocol, bytes, span).await?;
    let address = running.address_of(protocol);
    let open = load::at_rate(address, protocol, bytes, open_rate(bytes), span).await?;
    Ok(LoadFigures {
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
