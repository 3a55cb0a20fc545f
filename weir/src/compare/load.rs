//! Load of a trial: arrivals at a rate, from a trace, or from a file of requests.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, uri::PathAndQuery};
use serde::Deserialize;
use simulator::random::{Purpose, Streams};
use simulator::traces::{self, Source};

/// Largest number of requests sent with each setting.
pub(super) const REQUESTS_MAX: usize = 500_000;
/// Smallest mean number of requests per round at a rate; with fewer, a round may have none.
const LEAST_A_ROUND: f64 = 20.0;
/// Largest file of requests, in bytes.
const BYTES_MAX: u64 = 256 << 20;

/// A request without its address.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Template {
    pub(super) method: Method,
    pub(super) path: PathAndQuery,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// A request with its due time and objective.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    /// Due time, since the begin of its round.
    pub(super) at: Duration,
    pub(super) template: Arc<Template>,
    /// Objective of this request; `None`: the trial's applies.
    pub(super) slo: Option<Duration>,
}

/// Requests of each round, sorted by due time.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) rounds: Vec<Vec<Planned>>,
    /// Length of each round.
    pub(super) length: Duration,
}

/// One line of a file of requests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    at_s: f64,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    headers: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    body: String,
    #[serde(default)]
    slo_ms: Option<f64>,
}

/// Draws arrivals of a Poisson process with this rate per second: independent of each other, as those of many users.
pub(super) fn at_rate(
    rate: f64,
    seconds: f64,
    rounds: usize,
    seed: u64,
    template: &Arc<Template>,
) -> anyhow::Result<Load> {
    let length = seconds / rounds as f64;
    let expected = rate * seconds;
    ensure!(
        expected <= REQUESTS_MAX as f64,
        "--rate {rate} for --seconds {seconds} is {expected:.0} requests: at most {REQUESTS_MAX} are sent with each setting"
    );
    ensure!(
        expected / rounds as f64 >= LEAST_A_ROUND,
        "--rate {rate} for --seconds {seconds} in {rounds} rounds is {:.1} requests a round: at least {LEAST_A_ROUND} are needed; a longer --seconds has more",
        expected / rounds as f64
    );
    let streams = Streams::new("compare", seed);
    let rounds = (0..rounds).map(|round| {
        let mut stream = streams.stream(Purpose::Arrival, u32::try_from(round).unwrap_or(u32::MAX));
        let mut at = 0.0;
        let mut requests = Vec::new();
        loop {
            at -= stream.unit().ln() / rate;
            if at >= length {
                return requests;
            }
            requests.push(planned(at, template, None));
        }
    });
    Ok(Load {
        rounds: rounds.collect(),
        length: Duration::from_secs_f64(length),
    })
}

/// Reads the arrivals of a trace and ignores the work it describes.
pub(super) fn of_trace(
    path: &Path,
    seconds: f64,
    rounds: usize,
    seed: u64,
    template: &Arc<Template>,
) -> anyhow::Result<Load> {
    let options = traces::Options::new(Streams::new("compare", seed));
    let workload = traces::open(&Source::File(path.to_owned()), &options)?;
    let mut requests = Vec::new();
    for arrival in workload.arrivals {
        let arrival = arrival?;
        #[expect(clippy::cast_precision_loss, reason = "a time in s")]
        let at = arrival.at.0 as f64 / 1e9;
        if at >= seconds {
            break;
        }
        bounded(&requests, path)?;
        let slo = arrival.objective.map(|slo| Duration::from_nanos(slo.0));
        requests.push(planned(at, template, slo));
    }
    cut(requests, seconds, rounds, path)
}

/// Reads the requests of a JSON Lines file.
pub(super) fn of_requests(
    path: &Path,
    seconds: f64,
    rounds: usize,
    template: &Template,
) -> anyhow::Result<Load> {
    let name = path.display();
    let text = traces::text(&Source::File(path.to_owned()), BYTES_MAX)?;
    let mut requests: Vec<Planned> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let whole = read(line, template).with_context(|| format!("{name}: line {}", number + 1))?;
        if let Some(last) = requests.last()
            && whole.at < last.at
        {
            bail!(
                "{name}: line {}: at_s is before that of the line above: lines in the order of time are needed",
                number + 1
            );
        }
        if whole.at.as_secs_f64() >= seconds {
            break;
        }
        bounded(&requests, path)?;
        requests.push(whole);
    }
    cut(requests, seconds, rounds, path)
}

fn bounded(requests: &[Planned], path: &Path) -> anyhow::Result<()> {
    ensure!(
        requests.len() < REQUESTS_MAX,
        "{}: more than {REQUESTS_MAX} requests: at most that many are sent with each setting; a shorter --seconds takes fewer",
        path.display()
    );
    Ok(())
}

fn planned(at: f64, template: &Arc<Template>, slo: Option<Duration>) -> Planned {
    Planned {
        at: Duration::from_secs_f64(at),
        template: Arc::clone(template),
        slo,
    }
}

fn read(line: &str, template: &Template) -> anyhow::Result<Planned> {
    let line: Line = serde_json::from_str(line).map_err(|error| {
        let text = error.to_string();
        // The parser sees one line only and always reports "line 1".
        let text = text.rsplit_once(" at line ").map_or(&*text, |parts| parts.0);
        anyhow::anyhow!("{text}: an object with at_s, and if wanted method, path, headers, body, slo_ms is needed")
    })?;
    ensure!(
        (0.0..=1e6).contains(&line.at_s),
        "at_s is {}: seconds from 0 to 1000000 are needed",
        line.at_s
    );
    let slo = line.slo_ms.map(|ms| {
        ensure!(
            (1.0..=3.6e6).contains(&ms),
            "slo_ms is {ms}: a number from 1 to 3600000 is needed"
        );
        Ok(Duration::from_secs_f64(ms / 1e3))
    });
    let method = match &line.method {
        Some(method) => method
            .parse()
            .with_context(|| format!("method is {method:?}: a method of HTTP is needed"))?,
        None => template.method.clone(),
    };
    let path = match &line.path {
        Some(path) => path
            .parse()
            .ok()
            .filter(|_| path.starts_with('/'))
            .with_context(|| format!("path is {path:?}: a path that begins with / is needed"))?,
        None => template.path.clone(),
    };
    let mut headers = template.headers.clone();
    for (name, value) in &line.headers {
        let (name, value) = header(name, value)?;
        headers.insert(name, value);
    }
    Ok(Planned {
        at: Duration::from_secs_f64(line.at_s),
        template: Arc::new(Template {
            method,
            path,
            headers,
            body: if line.body.is_empty() {
                template.body.clone()
            } else {
                line.body.into()
            },
        }),
        slo: slo.transpose()?,
    })
}

/// Parses a header's name and value.
pub(super) fn header(name: &str, value: &str) -> anyhow::Result<(HeaderName, HeaderValue)> {
    let name = name
        .trim()
        .parse()
        .with_context(|| format!("header {name:?}: a name as X-Model is needed"))?;
    let value = value
        .trim()
        .parse()
        .with_context(|| format!("header {value:?}: a value of visible characters is needed"))?;
    Ok((name, value))
}

/// Splits requests into rounds of equal length that together span all arrivals.
fn cut(requests: Vec<Planned>, seconds: f64, rounds: usize, path: &Path) -> anyhow::Result<Load> {
    let name = path.display();
    let last = requests.last().map_or(0.0, |own| own.at.as_secs_f64());
    ensure!(
        requests.is_empty() || last > 0.0,
        "{name}: all requests come at the same time: some at later ones are needed"
    );
    ensure!(
        requests.len() >= 5 * rounds,
        "{name}: {} requests within --seconds {seconds}: at least {} are needed for {rounds} rounds",
        requests.len(),
        5 * rounds
    );
    // A file that ends before `seconds` is sent whole, in shorter rounds.
    let length = last.mul_add(1.0 + 1e-9, 1e-6).min(seconds) / rounds as f64;
    let mut cut = vec![Vec::new(); rounds];
    for mut request in requests {
        let at = request.at.as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of a round"
        )]
        let round = ((at / length) as usize).min(rounds - 1);
        request.at = Duration::from_secs_f64((at - round as f64 * length).max(0.0));
        cut[round].push(request);
    }
    if let Some(round) = cut.iter().position(Vec::is_empty) {
        bail!(
            "{name}: no request in round {} of {rounds}: fewer --rounds, or a file without such a gap, is needed",
            round + 1
        );
    }
    Ok(Load {
        rounds: cut,
        length: Duration::from_secs_f64(length),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn template() -> Arc<Template> {
        Arc::new(Template {
            method: Method::GET,
            path: "/".parse().unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        })
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn a_rate_is_kept_on_average_and_is_the_same_each_time() {
        let load = at_rate(50.0, 40.0, 4, 7, &template()).unwrap();
        let count: usize = load.rounds.iter().map(Vec::len).sum();
        // Four standard deviations of a Poisson count of 2,000.
        assert!((1_820..2_180).contains(&count), "{count}");
        let again = at_rate(50.0, 40.0, 4, 7, &template()).unwrap();
        let times = |load: &Load| -> Vec<Duration> {
            load.rounds.iter().flatten().map(|own| own.at).collect()
        };
        assert_eq!(times(&load), times(&again));
        for round in &load.rounds {
            assert!(round.is_sorted_by_key(|own| own.at));
            assert!(round.iter().all(|own| own.at < load.length));
        }
    }

    #[test]
    fn a_file_states_time_and_content_of_each_request() {
        let mut text = String::new();
        for n in 0..20 {
            text.push_str(&format!(
                "{{\"at_s\":{},\"method\":\"POST\",\"path\":\"/v1?n={n}\",\"headers\":{{\"X-N\":\"{n}\"}},\"body\":\"b{n}\",\"slo_ms\":{}}}\n",
                f64::from(n) * 0.5,
                100 + n
            ));
        }
        let load = of_requests(file(&text).path(), 60.0, 2, &template()).unwrap();
        assert_eq!(
            load.rounds.iter().map(Vec::len).collect::<Vec<_>>(),
            [10, 10]
        );
        let own = &load.rounds[1][0];
        assert_eq!(own.template.method, Method::POST);
        assert_eq!(own.template.path, "/v1?n=10");
        assert_eq!(own.template.headers["x-n"], "10");
        assert_eq!(own.template.body, "b10");
        assert_eq!(own.slo, Some(Duration::from_millis(110)));
        let whole: usize = of_requests(file(&text).path(), 5.0, 2, &template())
            .unwrap()
            .rounds
            .iter()
            .map(Vec::len)
            .sum();
        assert_eq!(whole, 10, "those of the first 5 s");
    }

    #[test]
    fn errors_in_a_file_name_the_line() {
        for (text, said) in [
            (
                "{\"at_s\":0}\n{\"at_s\":-1}\n",
                "line 2: at_s is -1: seconds from 0",
            ),
            (
                "{\"at_s\":1}\n\n{\"at_s\":0}\n",
                "line 3: at_s is before that of the line above",
            ),
            ("{\"at\":1}\n", "line 1: unknown field `at`"),
            (
                "{\"at_s\":1,\"path\":\"x\"}\n",
                "line 1: path is \"x\": a path that begins with /",
            ),
            (
                "{\"at_s\":1,\"method\":\"A B\"}\n",
                "line 1: method is \"A B\"",
            ),
            ("{\"at_s\":1,\"slo_ms\":0}\n", "line 1: slo_ms is 0"),
            (
                "{\"at_s\":1,\"headers\":{\"a b\":\"x\"}}\n",
                "line 1: header \"a b\"",
            ),
            (
                "{\"at_s\":0}\n{\"at_s\":0}\n",
                "all requests come at the same time",
            ),
            (
                "{\"at_s\":1}\n",
                "1 requests within --seconds 60: at least 10 are needed for 2 rounds",
            ),
        ] {
            let file = file(text);
            let error = of_requests(file.path(), 60.0, 2, &template()).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(said), "{text}: {error}");
            assert!(
                error.starts_with(&file.path().display().to_string()),
                "{error}"
            );
        }
    }

    #[test]
    fn a_trace_keeps_its_arrival_times() {
        let mut text = "arrival_s,function\n".to_owned();
        for n in 0..30 {
            text.push_str(&format!("{},f\n", f64::from(n) * 0.1));
        }
        let load = of_trace(file(&text).path(), 60.0, 3, 1, &template()).unwrap();
        assert_eq!(
            load.rounds.iter().map(Vec::len).collect::<Vec<_>>(),
            [10, 10, 10]
        );
        assert!((load.length.as_secs_f64() - 2.9 / 3.0).abs() < 1e-3);
    }
}
