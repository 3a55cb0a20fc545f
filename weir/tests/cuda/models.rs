//! `model-server`, which opens the driver as frameworks do, on a software GPU.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};

use model_server::checksum::Checked;
use model_server::{Model, expected_checksum};
use rustix::process::Signal;
use serde_json::Value;

use crate::place::{PATIENCE, Place, signal, until};

/// Sizes are divided by this.
const SCALE: u64 = 64;

/// A running model-server.
struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

impl Server {
    /// One of a model, which checks all of its weights with each request.
    fn start(place: &Place, model: &str) -> Self {
        let port = TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .unwrap()
            .port();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        place.is_for(&mut command);
        let parent = std::process::id().to_string();
        let child = command
            .args(["child", "model-server", "--parent", &parent])
            .env("PORT", port.to_string())
            .env("MODEL_NAME", model)
            .env("MODEL_DEVICE", "gpu")
            .env("MODEL_CHECK", "all")
            .env("MODEL_VERIFY", "true")
            .env("WEIR_BYTES_SCALE", SCALE.to_string())
            .spawn()
            .unwrap();
        let mut server = Self { child, port };
        until("the weights are loaded", || {
            assert!(server.child.try_wait().unwrap().is_none(), "it has ended");
            server.ask("GET /ready", "").0 == 200
        });
        server
    }

    /// Status and body; status 0: no answer.
    fn ask(&self, what: &str, body: &str) -> (u16, String) {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else {
            return (0, String::new());
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let head = "HTTP/1.1\r\nHost: model\r\nConnection: close\r\nContent-Length";
        let mut answer = String::new();
        let done = write!(stream, "{what} {head}: {length}\r\n\r\n{body}")
            .and_then(|()| stream.read_to_string(&mut answer));
        let Some((head, body)) = answer.split_once("\r\n\r\n").filter(|_| done.is_ok()) else {
            return (0, String::new());
        };
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    fn infer(&self, seed: u64) -> Value {
        let body = format!(r#"{{"input":0,"output":0,"seed":{seed}}}"#);
        let (status, body) = self.ask("POST /infer", &body);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn stats(&self) -> Value {
        serde_json::from_str(&self.ask("GET /stats", "").1).unwrap()
    }
}

#[test]
fn models_beside_each_other_answer_with_the_right_bytes() {
    let place = Place::new(&["--gpu", "V100", "--bytes", "64"]);
    let names = ["resnet-50", "gnmt"];
    let servers = names.map(|name| Server::start(&place, name));
    let observer = place.observer();
    let weights: u64 = servers
        .iter()
        .map(|server| server.stats()["weights_bytes"].as_u64().unwrap())
        .sum();
    assert!(weights > 0 && observer.used() >= weights, "{weights}");
    for seed in 0..3 {
        for (name, server) in names.iter().zip(&servers) {
            let answer = server.infer(seed);
            let blocks = server.stats()["blocks"].as_u64().unwrap();
            let all = Checked {
                first: 0,
                count: usize::try_from(blocks).unwrap(),
            };
            let model = Model::named(name).unwrap();
            let right = expected_checksum(&model, SCALE, all, seed);
            assert_eq!(
                answer["checksum"],
                format!("{right:016x}"),
                "{name}: {answer}"
            );
            assert_eq!(answer["right"], true, "{name}: {answer}");
        }
    }
    for server in &servers {
        assert_eq!(server.ask("GET /health?gpu=1", "").0, 200);
        let ledger = place.ledger();
        assert!(!ledger.of(server.child.id()).runs.is_empty());
    }
}

#[test]
fn a_model_whose_gpu_is_gone_does_not_answer_as_if_it_were_there() {
    let place = Place::new(&["--gpu", "V100", "--bytes", "64"]);
    let server = Server::start(&place, "resnet-50");
    server.infer(1);
    signal(place.server(), Signal::KILL);
    assert_ne!(server.ask("POST /infer", "{}").0, 200);
    assert_ne!(server.ask("GET /health?gpu=1", "").0, 200);
}
