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

/// The most requests at the server at once.
const CONCURRENCY_MAX: i64 = 1_000;
/// The most requests that may wait.
const DEPTH_MAX: i64 = 10_000;
/// An objective is at most an hour.
const SLO_MAX: Duration = Duration::from_secs(3_600);

/// What can be chosen.
#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "A trial on a server of your own:\n  \
                  weir proxy --target localhost:8080 --slo 200ms\n  \
                  curl -i http://127.0.0.1:9000/    # the same answers, in deadline order"
)]
pub(crate) struct Arguments {
    /// The server, as localhost:8080 or http://10.0.0.7:8000.
    #[arg(long, value_name = "HOST:PORT", value_parser = target)]
    pub(crate) target: Target,
    /// The latency objective, as 200ms or 1.5s: requests are served by their latest start. Without it first in, first out, as with
    /// Knative's settings.
    #[arg(long, value_name = "TIME", value_parser = slo)]
    pub(crate) slo: Option<Duration>,
    /// Requests at the server at once, 1 to 1000.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=CONCURRENCY_MAX))]
    pub(crate) concurrency: u32,
    /// What becomes of requests that cannot be in time any more [default: shed].
    #[arg(long, value_enum, requires = "slo", value_name = "WHAT")]
    pub(crate) late: Option<Late>,
    /// Requests that may wait, 1 to 10000 [default: 10 for each at the server].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=DEPTH_MAX))]
    pub(crate) queue_depth: Option<u32>,
    /// How long a request may take, waiting and answer included; then it is answered 504, or its answer is cut.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = timeout)]
    timeout: Duration,
    /// Where requests come to; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// Where metrics for Prometheus are; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9091")]
    metrics: SocketAddr,
    /// Print where it listens as one JSON object: `requests`, `metrics`.
    #[arg(long)]
    json: bool,
}

/// What becomes of requests that cannot be in time any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Late {
    /// They are answered 503 at once.
    Shed,
    /// They are served after all others.
    Serve,
}

/// A server's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// As it is named in requests.
    pub(crate) authority: String,
    pub(crate) address: SocketAddr,
    /// Of the URL that was given; `/` without one.
    pub(crate) path: String,
}

/// Reads `localhost:8080`, `http://host:port/path`.
pub(crate) fn target(text: &str) -> Result<Target, String> {
    const ALLOWED: &str = "HOST:PORT or http://HOST:PORT/PATH is needed, as localhost:8080";
    if text.starts_with("https://") {
        return Err(format!(
            "TLS to the server is not spoken: {ALLOWED}; a server behind TLS needs its plain port"
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
    // Of localhost's two addresses most servers listen on the one of IPv4.
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

/// Reads `200ms`, `1.5s`.
pub(crate) fn slo(text: &str) -> Result<Duration, String> {
    let parsed = annotations::values::duration(text);
    let allowed = "a time from 1ms to 1h is needed, as 200ms or 1.5s";
    parsed
        .ok()
        .filter(|slo| (Duration::from_millis(1)..=SLO_MAX).contains(slo))
        .ok_or_else(|| allowed.to_owned())
}

/// Reads `5m`, of whole seconds up to a day.
fn timeout(text: &str) -> Result<Duration, String> {
    let parsed = annotations::values::duration(text).ok();
    parsed
        .filter(|time| (Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(time))
        .ok_or_else(|| "a time from 1s to 24h is needed, as 5m or 1h".to_owned())
}

/// Raises what this process may have of open files to what is allowed: each request takes two.
pub(crate) fn raise_open_files() {
    let files = getrlimit(Resource::Nofile);
    // What is not allowed stays as it is.
    let _unchanged = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: files.maximum,
            ..files
        },
    );
}

/// Whether requests to a server at one address would come back to the other.
fn is_circle(target: SocketAddr, listen: SocketAddr) -> bool {
    target.port() == listen.port()
        && (target.ip() == listen.ip()
            || (listen.ip().is_unspecified() && target.ip().is_loopback()))
}

/// Runs it. Exit code 2: an option cannot be used, or a port is taken; 1: a second signal came before requests were served.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    ensure!(
        arguments.listen != arguments.metrics || arguments.listen.port() == 0,
        "--listen and --metrics are both {}: two addresses are needed",
        arguments.listen
    );
    if is_circle(arguments.target.address, arguments.listen) {
        bail!(
            "--target {} is --listen: requests would go round in a circle",
            arguments.target.authority
        );
    }
    for (option, address) in [
        ("--listen", arguments.listen),
        ("--metrics", arguments.metrics),
    ] {
        if address.port() != 0 {
            std::net::TcpListener::bind(address)
                .with_context(|| format!("{option} {address}: cannot be listened on"))?;
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
        // Whether anything reads it does not matter to requests.
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

/// The command line of the child of `weir compare`.
#[derive(Debug, Parser)]
#[command(name = "weir proxy")]
struct ChildArguments {
    #[command(flatten)]
    own: Arguments,
}

/// Runs it as a child; the arguments are those of the command.
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
    fn servers_are_read_as_people_write_them() {
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
    fn a_circle_is_seen() {
        let circle = |target: &str, listen: &str| {
            is_circle(target.parse().unwrap(), listen.parse().unwrap())
        };
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
