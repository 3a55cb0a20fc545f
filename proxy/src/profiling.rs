//! CPU profiles on port 8008, where Knative's `runtime-profiling` is enabled.
//!
//! `GET /debug/pprof/profile?seconds=N` samples the process for N seconds and returns a profile in pprof's format,
//! which `go tool pprof` and most viewers read. One profile is taken at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use pprof::{ProfilerGuardBuilder, Report};
use prost::Message;
use tokio::sync::Semaphore;

use crate::body::ProxyBody;
use crate::connection::{Client, Handler};
use crate::respond;

/// Port of the profiling server. Fixed by Knative.
pub const PROFILING_PORT: u16 = 8008;
/// Sampling rate in samples per second, as in Go's profiles.
const FREQUENCY: i32 = 100;
/// Default duration of a profile in seconds, as in Go.
const SECONDS_DEFAULT: u64 = 30;
/// Longest duration of a profile, in seconds.
const SECONDS_MAX: u64 = 300;
const FOLDER: &str = "/debug/pprof";
const INDEX: &str = "/debug/pprof/\n\n\
    cmdline: the command line, NUL between arguments\n\
    profile: a CPU profile in pprof's format; ?seconds=N, default 30, at most 300\n";

/// Handler of the profiling server.
#[derive(Debug)]
pub struct Profiling {
    running: Arc<Semaphore>,
}

impl Default for Profiling {
    fn default() -> Self {
        Self {
            running: Arc::new(Semaphore::new(1)),
        }
    }
}

impl Handler for Profiling {
    type Slot = ();

    async fn handle(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> Response<ProxyBody> {
        let _serving = client.begin(request.headers());
        match request.uri().path().strip_prefix(FOLDER) {
            Some("" | "/") => respond::text(StatusCode::OK, INDEX),
            Some("/cmdline") => {
                let arguments: Vec<_> = std::env::args().collect();
                respond::text(StatusCode::OK, arguments.join("\0"))
            }
            Some("/profile") => self.profile(request.uri().query()).await,
            _ => respond::not_found(),
        }
    }
}

impl Profiling {
    async fn profile(&self, query: Option<&str>) -> Response<ProxyBody> {
        let seconds = query
            .unwrap_or_default()
            .split('&')
            .find_map(|pair| pair.strip_prefix("seconds="));
        let seconds = seconds.map_or(Some(SECONDS_DEFAULT), |seconds| seconds.parse().ok());
        let Some(seconds) = seconds.filter(|seconds| (1..=SECONDS_MAX).contains(seconds)) else {
            return respond::error(
                StatusCode::BAD_REQUEST,
                &format!("seconds: allowed: whole numbers from 1 to {SECONDS_MAX}"),
            );
        };
        let Ok(_running) = Arc::clone(&self.running).try_acquire_owned() else {
            return respond::error(
                StatusCode::CONFLICT,
                "another profile is being taken; only one is taken at a time",
            );
        };
        let failed = |error: &dyn std::fmt::Display| {
            respond::error(
                StatusCode::INTERNAL_SERVER_ERROR,
                &format!("cannot take a profile: {error}"),
            )
        };
        #[expect(clippy::disallowed_methods, reason = "a wall-clock time for readers")]
        let begun = std::time::SystemTime::now();
        let guard = match ProfilerGuardBuilder::default().frequency(FREQUENCY).build() {
            Ok(guard) => guard,
            Err(error) => return failed(&error),
        };
        let span = Duration::from_secs(seconds);
        tokio::time::sleep(span).await;
        // Symbolization takes a while.
        let encoded = tokio::task::spawn_blocking(move || {
            let report = guard.report().build();
            report.map(|report| encode(&report, begun, span))
        });
        match encoded.await {
            Ok(Ok(encoded)) => {
                let mut response = Response::new(ProxyBody::full(encoded));
                response.headers_mut().insert(
                    CONTENT_TYPE,
                    HeaderValue::from_static("application/octet-stream"),
                );
                response
            }
            Ok(Err(error)) => failed(&error),
            Err(error) => failed(&error),
        }
    }
}

/// The fields of pprof's `Profile` message (`proto/profile.proto` of google/pprof) that are filled in here.
#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// Builder of a profile's string table.
#[derive(Default)]
struct Strings {
    indices: HashMap<String, i64>,
    table: Vec<String>,
}

impl Strings {
    /// Returns the index of a string in the table, to which it is added if necessary.
    fn index(&mut self, text: String) -> i64 {
        if let Some(index) = self.indices.get(&text) {
            return *index;
        }
        let index = i64::try_from(self.table.len()).unwrap_or_default();
        self.table.push(text.clone());
        self.indices.insert(text, index);
        index
    }
}

fn encode(report: &Report, begun: std::time::SystemTime, span: Duration) -> Vec<u8> {
    let nanos = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    let period = 1_000_000_000 / i64::from(FREQUENCY);
    let mut strings = Strings::default();
    strings.index(String::new());
    let samples_type = ValueType {
        kind: strings.index("samples".to_owned()),
        unit: strings.index("count".to_owned()),
    };
    let cpu_type = ValueType {
        kind: strings.index("cpu".to_owned()),
        unit: strings.index("nanoseconds".to_owned()),
    };
    let mut profile = Profile {
        sample_type: vec![samples_type, cpu_type],
        time_nanos: nanos(
            begun
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap_or_default(),
        ),
        duration_nanos: nanos(span),
        period_type: Some(cpu_type),
        period,
        ..Profile::default()
    };
    let mut functions = HashMap::new();
    let mut locations = HashMap::new();
    for (stack, count) in &report.data {
        let mut sample = Sample::default();
        for symbols in &stack.frames {
            let Some(first) = symbols.first() else {
                continue;
            };
            let address = first.addr.map_or(0, |address| address as u64);
            let key = (address, first.name());
            let next = profile.location.len() as u64 + 1;
            let id = *locations.entry(key).or_insert(next);
            if id == next {
                let line = symbols.iter().map(|symbol| {
                    let key = (symbol.name(), symbol.filename().into_owned());
                    let next = profile.function.len() as u64 + 1;
                    let function_id = *functions.entry(key.clone()).or_insert(next);
                    if function_id == next {
                        profile.function.push(Function {
                            id: next,
                            name: strings.index(key.0),
                            filename: strings.index(key.1),
                        });
                    }
                    Line {
                        function_id,
                        line: i64::from(symbol.lineno()),
                    }
                });
                let line = line.collect();
                profile.location.push(Location { id, address, line });
            }
            sample.location_id.push(id);
        }
        let count = i64::try_from(*count).unwrap_or_default();
        sample.value = vec![count, count.saturating_mul(period)];
        profile.sample.push(sample);
    }
    profile.string_table = strings.table;
    profile.encode_to_vec()
}
