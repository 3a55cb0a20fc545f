//! Command line of the check.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

pub(crate) const USAGE: &str = "usage: check --gateway HOST[:PORT] --images PREFIX[:TAG] [--only NAME[,NAME...]] [--from PREFIX[:TAG]]\n\
    \x20            [--overlay NAME] [--api-stop COMMAND --api-start COMMAND] [--tls-on COMMAND --tls-off COMMAND]\n\
    \x20            [--suites COMMAND] [--soak MINUTES]\n\
    --gateway HOST:PORT   where the ingress takes requests (port 80)\n\
    --images PREFIX:TAG   of activator-ext, queue-proxy, gpu-sidecar, weir and model-server: PREFIX/activator-ext:TAG (TAG: this version's)\n\
    --only NAMES          these checks alone, in their order; what they need of others is done as well\n\
    --from PREFIX:TAG     images of an earlier version, to be upgraded from\n\
    --overlay NAME        of manifests/overlays (softgpu)\n\
    --api-stop, --api-start  shell commands that stop the API server and start it again\n\
    --tls-on, --tls-off   shell commands that switch Knative's system-internal-tls, certificates for namespace weir-check included\n\
    --suites COMMAND      a shell command that runs Knative's own tests and prints what `go test -v` does\n\
    --soak MINUTES        how long functions are created and deleted beside 200 that stay (1 to 600; 10 is usual)\n\
    KUBECONFIG names the cluster. Prints JSON; exit code 0: no check failed, 1: one did, 2: bad usage.";

/// Options of the command line.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) gateway: SocketAddr,
    pub(crate) images: String,
    pub(crate) only: Vec<String>,
    pub(crate) from: Option<String>,
    pub(crate) overlay: String,
    pub(crate) api: Option<(String, String)>,
    pub(crate) tls: Option<(String, String)>,
    pub(crate) suites: Option<String>,
    pub(crate) soak: Option<Duration>,
}

impl Options {
    /// Parses the arguments.
    ///
    /// # Errors
    /// An unusable argument, in one sentence.
    pub(crate) fn parse(arguments: &[String], checks: &[&str]) -> Result<Self, String> {
        let mut gateway = None;
        let mut images = None;
        let (mut only, mut from, mut stop, mut start) = (Vec::new(), None, None, None);
        let (mut on, mut off, mut suites, mut soak) = (None, None, None, None);
        let mut overlay = "softgpu".to_owned();
        for pair in arguments.chunks(2) {
            let [name, value] = pair else {
                return Err(format!("{} needs a value", pair.concat()));
            };
            let value = value.clone();
            match name.as_str() {
                "--gateway" => gateway = Some(address(&value)?),
                "--images" => images = Some(value),
                "--from" => from = Some(value),
                "--overlay" => overlay = value,
                "--api-stop" => stop = Some(value),
                "--api-start" => start = Some(value),
                "--tls-on" => on = Some(value),
                "--tls-off" => off = Some(value),
                "--suites" => suites = Some(value),
                "--soak" => soak = Some(minutes(&value)?),
                "--only" => only = value.split(',').map(str::to_owned).collect(),
                other => return Err(format!("{other}: unknown option")),
            }
        }
        if let Some(unknown) = only.iter().find(|name| !checks.contains(&name.as_str())) {
            return Err(format!("--only {unknown}: allowed: {}", checks.join(", ")));
        }
        if stop.is_some() != start.is_some() {
            return Err("--api-stop and --api-start go together".to_owned());
        }
        if on.is_some() != off.is_some() {
            return Err("--tls-on and --tls-off go together".to_owned());
        }
        Ok(Self {
            gateway: gateway.ok_or("--gateway is missing")?,
            images: images.ok_or("--images is missing")?,
            only,
            from,
            overlay,
            api: stop.zip(start),
            tls: on.zip(off),
            suites,
            soak,
        })
    }

    /// Returns the image of a program.
    pub(crate) fn image(&self, program: &str) -> String {
        self.image_of(&self.images, program)
    }

    /// Returns the image of a program with this prefix.
    pub(crate) fn image_of(&self, images: &str, program: &str) -> String {
        match images.rsplit_once(':') {
            Some((prefix, tag)) if !tag.contains('/') => format!("{prefix}/{program}:{tag}"),
            _ => format!("{images}/{program}:{}", env!("CARGO_PKG_VERSION")),
        }
    }
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse::<u64>().ok();
    let minutes = minutes.filter(|it| (1..=600).contains(it));
    let minutes = minutes.ok_or_else(|| format!("--soak {text}: allowed: minutes, 1 to 600"))?;
    Ok(Duration::from_secs(60 * minutes))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let with_port = if text
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok())
    {
        text.to_owned()
    } else {
        format!("{text}:80")
    };
    let mut found = with_port
        .to_socket_addrs()
        .map_err(|error| format!("--gateway {text}: {error}"))?;
    found
        .next()
        .ok_or_else(|| format!("--gateway {text}: invalid address"))
}
