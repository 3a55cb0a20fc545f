//! `weir proxy`: the queue-proxy in front of any HTTP server.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Parser, ValueEnum};
use queue_proxy::standalone::{Addresses, Settings, serve};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use crate::usage;

/// Largest number of concurrent requests at the server.
const CONCURRENCY_MAX: i64 = 1_000;
/// Largest number of waiting requests.
const DEPTH_MAX: i64 = 10_000;
/// Longest latency objective that can be set.
const SLO_MAX: Duration = Duration::from_secs(3_600);

/// Arguments of `weir proxy`.
#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "A trial on a server of your own:\n  \
                  weir proxy --target localhost:8080 --slo 200ms\n  \
                  curl -i http://127.0.0.1:9000/    # the same answers, in deadline order"
)]
pub(crate) struct Arguments {
    /// The server, such as localhost:8080 or http://10.0.0.7:8000.
    #[arg(long, value_name = "HOST:PORT", value_parser = target)]
    pub(crate) target: Target,
    /// The latency objective, such as 200ms or 1.5s: requests are served by their latest start. Without it first in, first out,
    /// as with Knative's settings.
    #[arg(long, value_name = "TIME", value_parser = slo)]
    pub(crate) slo: Option<Duration>,
    /// Requests at the server at once, 1 to 1000.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=CONCURRENCY_MAX))]
    pub(crate) concurrency: u32,
    /// Treatment of requests that can no longer be in time [default: shed].
    #[arg(long, value_enum, requires = "slo", value_name = "WHAT")]
    pub(crate) late: Option<Late>,
    /// Waiting requests, at most, 1 to 10000 [default: 10 for each at the server].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=DEPTH_MAX))]
    pub(crate) queue_depth: Option<u32>,
    /// Longest time of a request, with waiting and answer; a longer one is answered 504, or its answer is cut.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = timeout)]
    timeout: Duration,
    /// Address for requests; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// Address of the metrics for Prometheus; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9091")]
    metrics: SocketAddr,
    /// Print the addresses it listens on as one JSON object: `requests`, `metrics`.
    #[arg(long)]
    json: bool,
}

/// Treatment of requests that can no longer be in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Late {
    /// Answer them 503 at once.
    Shed,
    /// Serve them after all others.
    Serve,
}

/// A server's name and address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Name and port, as in the requests' `Host`.
    pub(crate) authority: String,
    pub(crate) address: SocketAddr,
    /// Path of the given URL; `/` if it has none.
    pub(crate) path: String,
}

/// Parses `localhost:8080` or `http://host:port/path`, and resolves the name.
pub(crate) fn target(text: &str) -> Result<Target, String> {
    const ALLOWED: &str = "HOST:PORT or http://HOST:PORT/PATH is needed, such as localhost:8080";
    if text.starts_with("https://") {
        return Err(format!(
            "TLS to the server is not supported: {ALLOWED}; a server behind TLS needs its plain port"
        ));
    }
    let rest = text.strip_prefix("http://").unwrap_or(text);
    let (authority, path) = match rest.find('/') {
        Some(at) => (&rest[..at], &rest[at..]),
        None => (rest, "/"),
    };
    let authority: http::uri::Authority = authority.parse().map_err(|_| ALLOWED.to_owned())?;
    let is_path = path.parse::<http::uri::PathAndQuery>().is_ok();
    if !is_path || authority.as_str().contains('@') {
        return Err(ALLOWED.to_owned());
    }
    let port = match authority.port_u16() {
        Some(port) if port > 0 => port,
        None if text.starts_with("http://") && authority.port().is_none() => 80,
        _ => return Err(ALLOWED.to_owned()),
    };
    let host = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']');
    let mut addresses = (host, port)
        .to_socket_addrs()
        .map_err(|error| format!("{host} cannot be resolved: {error}"))?;
    // Of localhost's two addresses, most servers listen on the IPv4 one.
    let first = addresses.next();
    let address = first.filter(SocketAddr::is_ipv4);
    let address = address
        .or_else(|| addresses.find(SocketAddr::is_ipv4))
        .or(first);
    Ok(Target {
        authority: authority.to_string(),
        address: address.ok_or_else(|| format!("{host} has no address"))?,
        path: path.to_owned(),
    })
}

/// Parses a time from 1ms to 1h, such as `200ms` or `1.5s`.
pub(crate) fn slo(text: &str) -> Result<Duration, String> {
    let parsed = annotations::values::duration(text);
    let allowed = "allowed: a time from 1ms to 1h such as 200ms or 1.5s";
    parsed
        .ok()
        .filter(|slo| (Duration::from_millis(1)..=SLO_MAX).contains(slo))
        .ok_or_else(|| allowed.to_owned())
}

/// Parses a time from 1s to 24h in whole seconds, such as `5m`.
fn timeout(text: &str) -> Result<Duration, String> {
    let parsed = annotations::values::duration(text).ok();
    parsed
        .filter(|time| (Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(time))
        .ok_or_else(|| "allowed: a time from 1s to 24h such as 5m or 1h".to_owned())
}

/// Raises this process's limit of open files to the hard limit: each request takes two.
pub(crate) fn raise_open_files() {
    let files = getrlimit(Resource::Nofile);
    // A refused change leaves the limit as it was.
    let _unchanged = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: files.maximum,
            ..files
        },
    );
}

/// Returns whether requests to `target` would arrive at `listen`.
fn is_loop(target: SocketAddr, listen: SocketAddr) -> bool {
    target.port() == listen.port()
        && (target.ip() == listen.ip()
            || (listen.ip().is_unspecified() && target.ip().is_loopback()))
}

/// Runs `weir proxy`. Returns exit code 1 if a second signal came before all requests were served.
///
/// # Errors
/// An option is unusable or a port is taken: exit code 2.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    ensure!(
        arguments.listen != arguments.metrics || arguments.listen.port() == 0,
        "--listen and --metrics are both {}: two addresses are needed",
        arguments.listen
    );
    if is_loop(arguments.target.address, arguments.listen) {
        bail!(
            "--target {} is --listen: requests would loop",
            arguments.target.authority
        );
    }
    for (option, address) in [
        ("--listen", arguments.listen),
        ("--metrics", arguments.metrics),
    ] {
        if address.port() != 0 {
            std::net::TcpListener::bind(address)
                .with_context(|| format!("{option} {address}: cannot listen"))?;
        }
    }
    ensure!(
        arguments.target.path == "/",
        "--target: a path, {}, is not used: requests keep their own",
        arguments.target.path
    );
    raise_open_files();
    let settings = Settings {
        listen: arguments.listen,
        target: arguments.target.address,
        metrics: arguments.metrics,
        timeout: arguments.timeout,
        concurrency: arguments.concurrency,
        queue_depth: arguments.queue_depth,
        slo: arguments.slo,
        sheds_late: arguments.late != Some(Late::Serve),
    };
    Ok(serve(&settings, |addresses| {
        let text = if arguments.json {
            json(addresses)
        } else {
            description(arguments, addresses)
        };
        let mut stdout = std::io::stdout().lock();
        // Requests are served whether or not the output is read.
        let _written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    }))
}

#[derive(Serialize)]
struct Listening {
    requests: String,
    metrics: Option<String>,
}

fn json(addresses: Addresses) -> String {
    let listening = Listening {
        requests: format!("http://{}", addresses.requests),
        metrics: addresses.metrics.map(|own| format!("http://{own}/metrics")),
    };
    serde_json::to_string(&listening).unwrap_or_default()
}

fn description(arguments: &Arguments, addresses: Addresses) -> String {
    let depth = arguments.queue_depth.unwrap_or(arguments.concurrency * 10);
    let many = |count: u32| {
        if count == 1 {
            "1 request".to_owned()
        } else {
            format!("{count} requests")
        }
    };
    let order = match (arguments.slo, arguments.late) {
        (None, _) => {
            "First in, first out, as with Knative's settings; --slo 200ms would serve by deadline."
                .to_owned()
        }
        (Some(slo), late) => format!(
            "Objective {slo:?}: the request that must start soonest goes first; one that cannot be in time any more is {}.",
            if late == Some(Late::Serve) {
                "served after all others"
            } else {
                "answered 503 at once (--late serve: served last)"
            }
        ),
    };
    let reachable =
        std::net::TcpStream::connect_timeout(&arguments.target.address, Duration::from_secs(2));
    let warning = reachable.err().map_or_else(String::new, |error| {
        format!(
            "\nNothing answers at {} yet: {error}; requests get 502 until something does.",
            arguments.target.authority
        )
    });
    let metrics = addresses.metrics.map_or_else(String::new, |own| {
        format!("\nMetrics: http://{own}/metrics")
    });
    format!(
        "Listening on http://{}, in front of http://{}\nAt the server at once: {}; {} may wait, more are answered 503.\n{order}{metrics}\nCtrl-C \
         ends it once the requests that are here are served; a second one at once.{warning}",
        addresses.requests,
        arguments.target.authority,
        many(arguments.concurrency),
        many(depth),
    )
}

/// Command line of the child process of `weir compare`.
#[derive(Debug, Parser)]
#[command(name = "weir proxy")]
struct ChildArguments {
    #[command(flatten)]
    own: Arguments,
}

/// Runs `weir proxy` as a child with the arguments of the command.
pub(crate) fn run_child(arguments: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let name = std::iter::once(OsString::from("weir proxy"));
    match usage::parsed_from::<ChildArguments>(name.chain(arguments)) {
        Ok(arguments) => run(&arguments.own),
        Err(code) => Ok(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_common_spellings_of_a_server() {
        for (text, address, path) in [
            ("127.0.0.1:8080", "127.0.0.1:8080", "/"),
            (
                "http://127.0.0.1:8080/infer?x=1",
                "127.0.0.1:8080",
                "/infer?x=1",
            ),
            ("http://127.0.0.1", "127.0.0.1:80", "/"),
            ("[::1]:8080", "[::1]:8080", "/"),
        ] {
            let target = target(text).unwrap();
            assert_eq!(target.address.to_string(), address, "{text}");
            assert_eq!(target.path, path, "{text}");
        }
        assert_eq!(target("localhost:8080").unwrap().address.port(), 8080);
        for text in [
            "",
            "8080",
            "127.0.0.1",
            "127.0.0.1:0",
            "127.0.0.1:99999",
            "a b:1",
            "u@127.0.0.1:1",
        ] {
            let error = target(text).unwrap_err();
            assert!(error.contains("HOST:PORT"), "{text}: {error}");
        }
        assert!(target("https://127.0.0.1:1").unwrap_err().contains("TLS"));
    }

    #[test]
    fn detects_a_loop() {
        let circle =
            |target: &str, listen: &str| is_loop(target.parse().unwrap(), listen.parse().unwrap());
        assert!(circle("127.0.0.1:80", "127.0.0.1:80"));
        assert!(circle("127.0.0.1:80", "0.0.0.0:80"));
        assert!(!circle("127.0.0.1:80", "127.0.0.2:80"));
        assert!(!circle("10.0.0.1:80", "0.0.0.0:80"));
        assert!(!circle("127.0.0.1:80", "127.0.0.1:81"));
    }

    #[test]
    fn objectives_are_times() {
        assert_eq!(slo("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(slo("1.5s"), Ok(Duration::from_millis(1_500)));
        for text in ["200", "0ms", "2h", "-1s", ""] {
            assert!(slo(text).unwrap_err().contains("1ms to 1h"), "{text}");
        }
    }
}
