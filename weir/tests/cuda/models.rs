//! `model-server`, which loads the driver as frameworks do, on a software GPU.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};

use model_server::checksum::CheckedBlocks;
use model_server::{Model, expected_checksum};
use rustix::process::Signal;
use serde_json::Value;

use softgpu_harness::soft_gpu_dir::{SoftGpuDir, signal};
use testing::{PATIENCE, until};

/// Divisor of memory sizes, as in the software GPU.
const SCALE: u64 = 64;

/// A running model-server, killed when dropped.
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
    /// Starts the server of a model which checks all of its weights with each request.
    fn start(softgpu: &SoftGpuDir, model: &str) -> Self {
        Self::start_with(softgpu, model, &[])
    }

    fn start_with(softgpu: &SoftGpuDir, model: &str, variables: &[(&str, &str)]) -> Self {
        let port = TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .unwrap()
            .port();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        softgpu.is_for(&mut command);
        let parent = std::process::id().to_string();
        let child = command
            .args(["child", "model-server", "--parent", &parent])
            .env("PORT", port.to_string())
            .env("MODEL_NAME", model)
            .env("MODEL_DEVICE", "gpu")
            .env("MODEL_CHECK", "all")
            .env("MODEL_VERIFY", "true")
            .env("WEIR_BYTES_SCALE", SCALE.to_string())
            .envs(variables.iter().copied())
            .spawn()
            .unwrap();
        let mut server = Self { child, port };
        until("the weights are loaded", || {
            assert!(
                server.child.try_wait().unwrap().is_none(),
                "the server has ended"
            );
            server.request("GET /ready", "").0 == 200
        });
        server
    }

    /// Sends a request; returns status and body, with status 0 if there is no answer.
    fn request(&self, what: &str, body: &str) -> (u16, String) {
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
        let (status, body) = self.request("POST /infer", &body);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn stats(&self) -> Value {
        serde_json::from_str(&self.request("GET /stats", "").1).unwrap()
    }
}

#[test]
fn kernels_that_read_the_weights_answer_with_the_right_bytes_in_the_same_time() {
    let softgpu = SoftGpuDir::new(&["--gpu", "V100", "--bytes", "64"]);
    let model = Model::named("resnet-50").unwrap();
    for touch in ["order", "hidden"] {
        let server = Server::start_with(&softgpu, "resnet-50", &[("MODEL_TOUCH", touch)]);
        let blocks = server.stats()["blocks"].as_u64().unwrap();
        let all = CheckedBlocks {
            first: 0,
            count: usize::try_from(blocks).unwrap(),
        };
        for seed in 0..3 {
            let answer = server.infer(seed);
            let right = expected_checksum(&model, SCALE, all, seed);
            assert_eq!(answer["checksum"], format!("{right:016x}"), "{touch}");
            assert_eq!(answer["right"], true, "{touch}: {answer}");
            // The kernels of the model take 9 ms, whether they read or not.
            let took = answer["gpu_ms"].as_f64().unwrap();
            assert!(took >= 9.0, "{touch}: {answer}");
        }
    }
}

#[test]
fn state_that_a_batch_writes_is_what_the_next_one_finds() {
    let softgpu = SoftGpuDir::new(&["--gpu", "V100", "--bytes", "64"]);
    let change = [("MODEL_CHANGE", "30MiB")];
    let server = Server::start_with(&softgpu, "resnet-50", &change);
    for seed in 0..4 {
        let answer = server.infer(seed);
        assert_eq!(answer["right"], true, "{answer}");
    }
    let stats = server.stats();
    assert_eq!(
        (&stats["wrong"], &stats["moved_blocks"]),
        (&0.into(), &0.into())
    );
}

#[test]
fn concurrent_models_answer_with_the_right_bytes() {
    let softgpu = SoftGpuDir::new(&["--gpu", "V100", "--bytes", "64"]);
    let names = ["resnet-50", "gnmt"];
    let servers = names.map(|name| Server::start(&softgpu, name));
    let observer = softgpu.observer();
    let weights: u64 = servers
        .iter()
        .map(|server| server.stats()["weights_bytes"].as_u64().unwrap())
        .sum();
    assert!(weights > 0 && observer.used() >= weights, "{weights}");
    for seed in 0..3 {
        for (name, server) in names.iter().zip(&servers) {
            let answer = server.infer(seed);
            let blocks = server.stats()["blocks"].as_u64().unwrap();
            let all = CheckedBlocks {
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
        assert_eq!(server.request("GET /health?gpu=1", "").0, 200);
        let ledger = softgpu.ledger();
        assert!(!ledger.of(server.child.id()).runs.is_empty());
    }
}

#[test]
fn a_model_without_its_gpu_reports_failure() {
    let softgpu = SoftGpuDir::new(&["--gpu", "V100", "--bytes", "64"]);
    let server = Server::start(&softgpu, "resnet-50");
    server.infer(1);
    signal(softgpu.server(), Signal::KILL);
    assert_ne!(server.request("POST /infer", "{}").0, 200);
    assert_ne!(server.request("GET /health?gpu=1", "").0, 200);
}
