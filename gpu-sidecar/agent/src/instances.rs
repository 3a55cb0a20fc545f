//! `gpu-sidecar list`, `evict` and `restore`: the pods of a running agent, by its control API.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use agent_core::{DRAIN_MS_MAX, MOVE_MAX};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

/// Largest response that is read, in bytes.
const RESPONSE_MAX: usize = 16 << 20;
/// Timeout for the connection to the agent.
const CONNECT_SPAN: Duration = Duration::from_secs(5);
/// Timeout for its answer, beside the time which a move may take.
const ANSWER_SPAN: Duration = Duration::from_secs(10);

/// Request to a running agent.
#[derive(Debug, Clone)]
pub(crate) enum InstanceRequest {
    /// Its pods.
    List,
    /// A move of a pod's model to the host or back.
    Move {
        /// Name of the pod.
        id: String,
        /// `evict` or `restore`.
        verb: &'static str,
        /// Time for which work in flight is waited for, in milliseconds.
        drain_ms: u32,
    },
}

/// Outcome of a request: text for the user, and whether the agent has done what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) text: String,
    pub(crate) is_done: bool,
}

/// Sends a request to the agent at this address, and returns its answer as text, or as it is (`is_json`).
///
/// # Errors
/// Returns an error when nothing listens at the address, or there is no answer in time, or one that is not of an agent.
pub(crate) fn ask(
    address: SocketAddr,
    request: &InstanceRequest,
    is_json: bool,
) -> Result<Outcome, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let (method, path, body, span) = match request {
        InstanceRequest::List => (
            Method::GET,
            "/v1/instances".to_owned(),
            String::new(),
            ANSWER_SPAN,
        ),
        InstanceRequest::Move { id, verb, drain_ms } => (
            Method::POST,
            format!("/v1/instances/{id}:{verb}?wait=true"),
            json!({"drain_ms": drain_ms}).to_string(),
            MOVE_MAX + Duration::from_millis(DRAIN_MS_MAX.into()) + ANSWER_SPAN,
        ),
    };
    let (status, answer) = runtime.block_on(async {
        let connecting = tokio::net::TcpStream::connect(address);
        let stream = match tokio::time::timeout(CONNECT_SPAN, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(format!("no agent listens at {address}: {error}")),
            Err(_) => {
                return Err(format!(
                    "no agent listens at {address}: no connection within {CONNECT_SPAN:?}"
                ));
            }
        };
        let answered = exchange(stream, address, method, &path, body);
        match tokio::time::timeout(span, answered).await {
            Ok(Ok(answered)) => Ok(answered),
            Ok(Err(error)) => Err(format!("{address} answers, but not as an agent: {error}")),
            Err(_) => Err(format!(
                "the agent at {address} does not answer within {span:?}"
            )),
        }
    })?;
    let is_done = status.is_success();
    let text = if is_json {
        format!("{answer}\n")
    } else {
        match request {
            InstanceRequest::List if is_done => table(&answer),
            InstanceRequest::Move { id, .. } if is_done => summary(id, &answer),
            _ => refusal(status, &answer),
        }
    };
    Ok(Outcome { text, is_done })
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn exchange(
    stream: tokio::net::TcpStream,
    address: SocketAddr,
    method: Method,
    path: &str,
    body: String,
) -> Result<(StatusCode, Value), Failure> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, address.to_string())
        .body(Full::new(Bytes::from(body)))?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), RESPONSE_MAX).collect();
    let answer = serde_json::from_slice(&body.await?.to_bytes())?;
    connection.abort();
    Ok((status, answer))
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn mib(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0) >> 20
}

/// Returns a table of the pods: name, slot, location of the model, memory on the device and for its copy on the host in MiB, processes.
fn table(answer: &Value) -> String {
    let mut rows = vec![
        [
            "NAME",
            "SLOT",
            "MODEL",
            "USED MiB",
            "FIXED MiB",
            "HOST MiB",
            "PROCESSES",
        ]
        .map(str::to_owned),
    ];
    for instance in answer["instances"].as_array().into_iter().flatten() {
        let processes = instance["processes"].as_array();
        let processes = processes.map_or(&[][..], Vec::as_slice);
        let sum = |key: &str| processes.iter().map(|own| mib(&own[key])).sum::<u64>();
        let mut places: Vec<String> = processes
            .iter()
            .map(|own| text_of(&own["residency"]))
            .collect();
        places.sort_unstable();
        places.dedup();
        rows.push([
            text_of(&instance["id"]),
            text_of(&instance["slot"]),
            places.join(","),
            sum("bytes_used").to_string(),
            sum("bytes_fixed").to_string(),
            sum("host_bytes").to_string(),
            processes.len().to_string(),
        ]);
    }
    let mut text = String::new();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..7).map(width).collect();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _infallible = write!(line, "{cell:width$}  ");
        }
        let _infallible = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn summary(id: &str, answer: &Value) -> String {
    let ms = |key: &str| answer["ms"][key].as_f64().unwrap_or(0.0);
    format!(
        "{id}: {}; {} MiB, {} MiB of them copied, in {:.1} ms (drain {:.1}, hash {:.1}, copy {:.1}, unmap {:.1}, map {:.1})\n",
        text_of(&answer["state"]),
        mib(&answer["bytes"]),
        mib(&answer["copied_bytes"]),
        ms("total"),
        ms("drain"),
        ms("hash"),
        ms("copy"),
        ms("unmap"),
        ms("map"),
    )
}

fn refusal(status: StatusCode, answer: &Value) -> String {
    let why = [&answer["text"], &answer["error"]].map(text_of);
    let why = why.into_iter().find(|text| !text.is_empty());
    let reason = text_of(&answer["reason"]);
    let reason = if reason.is_empty() {
        status.to_string()
    } else {
        reason
    };
    format!("{reason}: {}\n", why.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_a_table_with_aligned_columns() {
        let answer = json!({"instances": [
            {"id": "a", "slot": "0", "processes": [
                {"residency": "host", "bytes_used": 3 << 20, "bytes_fixed": 1 << 20, "host_bytes": 4 << 20},
                {"residency": "resident", "bytes_used": 1 << 20, "bytes_fixed": 0, "host_bytes": 0},
            ]},
            {"id": "a-long-name", "slot": "1"},
        ]});
        let text = table(&answer);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let column = lines[0].find("MODEL").unwrap();
        assert!(lines[1][column..].starts_with("host,resident"), "{text}");
        let words: Vec<_> = lines[1].split_whitespace().collect();
        assert_eq!(words, ["a", "0", "host,resident", "4", "1", "4", "2"]);
        let words: Vec<_> = lines[2].split_whitespace().collect();
        assert_eq!(words, ["a-long-name", "1", "0", "0", "0", "0"]);
    }

    #[test]
    fn answers_are_stated_in_a_line() {
        let done = json!({"state": "host", "bytes": 5 << 20, "copied_bytes": 0, "ms": {"total": 3.25, "hash": 1.0}});
        assert_eq!(
            summary("a", &done),
            "a: host; 5 MiB, 0 MiB of them copied, in 3.2 ms (drain 0.0, hash 1.0, copy 0.0, unmap 0.0, map 0.0)\n"
        );
        let refused = json!({"reason": "never", "text": "it stays"});
        assert_eq!(refusal(StatusCode::CONFLICT, &refused), "never: it stays\n");
        let unknown = json!({"error": "no such instance", "allowed": []});
        assert_eq!(
            refusal(StatusCode::NOT_FOUND, &unknown),
            "404 Not Found: no such instance\n"
        );
    }
}
