//! A small HTTP server that stands for a GPU function, in its CPU mode: the service time is waited.
//!
//! One request at a time per instance, first come first served, as a model that fills its GPU does. A
//! request takes `fixed + per_input · input + per_output · output`.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `PORT` | where it listens, on 127.0.0.1 | required |
//! | `MODEL_FIXED_US` | µs per request | 0 |
//! | `MODEL_INPUT_NS` | ns per unit of input | 0 |
//! | `MODEL_OUTPUT_NS` | ns per unit of output | 0 |
//!
//! | path | answer |
//! |---|---|
//! | `POST /infer` | 200 after the service time; body in: `{"input": n, "output": n}`, whole numbers |
//! | `GET /ready` | 200 |
//! | `GET /served` | 200, the number of requests served to the end |
#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;

/// A request's body may be this long.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// No request takes longer than this, whatever it asks for.
const SERVICE_MAX: Duration = Duration::from_secs(600);

/// What a request costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Nanoseconds per request.
    pub fixed_ns: u64,
    /// Nanoseconds per unit of input.
    pub per_input_ns: u64,
    /// Nanoseconds per unit of output.
    pub per_output_ns: u64,
}

/// What a request asks for: the body of `/infer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Units of input, as tokens of a prompt.
    pub input: u64,
    /// Units of output, as tokens to generate.
    pub output: u64,
}

impl Cost {
    /// How long a request takes; at most ten minutes.
    #[must_use]
    pub fn service_time(&self, work: Work) -> Duration {
        let input = self.per_input_ns.saturating_mul(work.input);
        let output = self.per_output_ns.saturating_mul(work.output);
        let nanos = self.fixed_ns.saturating_add(input).saturating_add(output);
        Duration::from_nanos(nanos).min(SERVICE_MAX)
    }

    /// The variables that tell a model-server this cost.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 3] {
        [
            ("MODEL_FIXED_US", (self.fixed_ns / 1_000).to_string()),
            ("MODEL_INPUT_NS", self.per_input_ns.to_string()),
            ("MODEL_OUTPUT_NS", self.per_output_ns.to_string()),
        ]
    }
}

#[derive(Debug)]
struct Model {
    cost: Cost,
    busy: Mutex<()>,
    served: AtomicU64,
}

/// Runs until SIGTERM or SIGINT. Exit code 2 for a variable that cannot be used, 1 for a port in use.
#[must_use]
pub fn main() -> ExitCode {
    let (port, cost) = match settings(|name| std::env::var(name).ok()) {
        Ok(settings) => settings,
        Err(why) => return fail(&why, 2),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start the runtime: {error}"), 1),
    };
    runtime.block_on(run(port, cost))
}

fn settings(variable: impl Fn(&str) -> Option<String>) -> Result<(u16, Cost), String> {
    let port = variable("PORT").ok_or("PORT is not set")?;
    let port = port
        .parse()
        .map_err(|_| format!("PORT={port:?}: a port number is needed"))?;
    let number = |name: &str| match variable(name) {
        None => Ok(0),
        Some(value) => value
            .parse::<u64>()
            .map_err(|_| format!("{name}={value:?}: a whole number is needed")),
    };
    let fixed_us = number("MODEL_FIXED_US")?;
    let cost = Cost {
        fixed_ns: fixed_us.saturating_mul(1_000),
        per_input_ns: number("MODEL_INPUT_NS")?,
        per_output_ns: number("MODEL_OUTPUT_NS")?,
    };
    Ok((port, cost))
}

async fn run(port: u16, cost: Cost) -> ExitCode {
    let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
        Ok(listener) => listener,
        Err(error) => return fail(&format!("cannot listen on 127.0.0.1:{port}: {error}"), 1),
    };
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return fail("cannot listen for signals", 1);
    };
    let model = Arc::new(Model {
        cost,
        busy: Mutex::new(()),
        served: AtomicU64::new(0),
    });
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _signal = terminate.recv() => return ExitCode::SUCCESS,
            _signal = interrupt.recv() => return ExitCode::SUCCESS,
        };
        let Ok((stream, _)) = accepted else { continue };
        let model = Arc::clone(&model);
        let service = service_fn(move |request| answer(Arc::clone(&model), request));
        tokio::spawn(async move {
            // A client that breaks off is its own affair.
            let _ended = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(
    model: Arc<Model>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::POST, "/infer") => match infer(&model, request).await {
            Ok(()) => (StatusCode::OK, "done".to_owned()),
            Err(why) => (StatusCode::BAD_REQUEST, why),
        },
        (_, "/ready") => (StatusCode::OK, "ready".to_owned()),
        (_, "/served") => (
            StatusCode::OK,
            model.served.load(Ordering::Relaxed).to_string(),
        ),
        _ => (
            StatusCode::NOT_FOUND,
            "known: POST /infer, GET /ready, GET /served".to_owned(),
        ),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    Ok(response)
}

async fn infer(model: &Model, request: Request<Incoming>) -> Result<(), String> {
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX)
        .collect()
        .await;
    let body = body
        .map_err(|error| format!("the body cannot be read: {error}"))?
        .to_bytes();
    let work: Work = serde_json::from_slice(&body)
        .map_err(|error| format!("{{\"input\": n, \"output\": n}} is needed: {error}"))?;
    // The lock is the GPU: held for as long as the request computes, given on in order of arrival.
    let _busy = model.busy.lock().await;
    tokio::time::sleep(model.cost.service_time(work)).await;
    model.served.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

fn fail(why: &str, code: u8) -> ExitCode {
    // Nobody to tell if this fails.
    let _written = writeln!(std::io::stderr(), "model-server: {why}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_time_is_linear_and_bounded() {
        let cost = Cost {
            fixed_ns: 5,
            per_input_ns: 2,
            per_output_ns: 3,
        };
        assert_eq!(
            cost.service_time(Work {
                input: 10,
                output: 100
            }),
            Duration::from_nanos(325)
        );
        assert_eq!(
            cost.service_time(Work {
                input: u64::MAX,
                output: 1
            }),
            SERVICE_MAX
        );
    }

    #[test]
    fn settings_name_what_is_wrong() {
        let with = |name: &'static str, value: &'static str| {
            settings(move |asked| match asked {
                asked if asked == name => Some(value.to_owned()),
                "PORT" => Some("1".to_owned()),
                _ => None,
            })
        };
        assert_eq!(settings(|_| None), Err("PORT is not set".to_owned()));
        assert!(with("PORT", "http").unwrap_err().contains("PORT=\"http\""));
        assert!(
            with("MODEL_INPUT_NS", "-1")
                .unwrap_err()
                .contains("a whole number")
        );
        assert_eq!(with("MODEL_FIXED_US", "2").unwrap().1.fixed_ns, 2_000);
    }
}
