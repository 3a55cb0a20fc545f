//! `activator-ext detach`: removes activator-ext from the path of revisions by hand, whether or not role `control`
//! runs.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use policy::attach::{Attachment, Step};
use proxy::clock::Clock;
use proxy::process::{complain, print};
use serde_json::json;
use tokio::time::Instant;

use super::attach::{Writer, name_of};
use super::cluster::revision_kind;
use super::config::NAMESPACE;
use super::facts::{Facts, Surroundings};
use super::names::{ALL, DETACHED, detached_key};
use crate::source::kubernetes::{self, revision};
use crate::{NAME, USAGE_ERROR};

/// Pause between two reads of a revision whose next step is not due yet.
const PAUSE: Duration = Duration::from_millis(100);

/// The arguments of `detach`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub(crate) struct DetachArguments {
    /// Detaches all revisions.
    #[arg(long, group = "which")]
    all: bool,
    /// The revision to detach.
    #[arg(value_name = "NAMESPACE/REVISION", group = "which", value_parser = pair)]
    revision: Option<(String, String)>,
    /// Allows the revision, or all, to be attached again.
    #[arg(long)]
    undo: bool,
    /// Namespace of Weir's role control.
    #[arg(long, value_name = "NAME", default_value = NAMESPACE)]
    namespace: String,
    /// Seconds until the command gives up.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    timeout: u64,
}

/// Surroundings under which a revision is detached, whatever its annotations are.
const DETACHED_BY_HAND: Surroundings<'static> = Surroundings {
    is_leaving: true,
    is_mesh: false,
    is_detached: true,
    pods: &[],
};

fn pair(text: &str) -> Result<(String, String), String> {
    let needed = || "NAMESPACE/REVISION is needed, as default/hello-00001".to_owned();
    let (namespace, name) = text.split_once('/').ok_or_else(needed)?;
    annotations::values::dns_label(namespace).map_err(|_| needed())?;
    annotations::values::dns_subdomain(name).map_err(|_| needed())?;
    Ok((namespace.to_owned(), name.to_owned()))
}

/// Runs `detach`. Returns exit code 0 if all named revisions are detached, and 1 if one is not or cannot be checked.
pub(crate) async fn detach(arguments: DetachArguments) -> ExitCode {
    let client = match kubernetes::client().await {
        Ok(client) => client,
        Err(why) => return complain(NAME, USAGE_ERROR, [why]),
    };
    match run(client, &arguments).await {
        Ok(text) => print(&format!("{text}\n")),
        Err(why) => complain(NAME, 1, [why]),
    }
}

async fn run(client: Client, arguments: &DetachArguments) -> Result<String, String> {
    let key = match &arguments.revision {
        Some((namespace, name)) => detached_key(namespace, name),
        None => ALL.to_owned(),
    };
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &arguments.namespace);
    let error = |error: kube::Error| error.to_string();
    if arguments.undo {
        let patch = json!({"data": {&key: null}});
        return match maps
            .patch(DETACHED, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Ok(_) => Ok(format!("{key} may be attached again")),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                Ok("nothing was detached by hand".to_owned())
            }
            Err(other) => Err(error(other)),
        };
    }
    let revisions: Api<DynamicObject> = match &arguments.revision {
        Some((namespace, _)) => Api::namespaced_with(client.clone(), namespace, &revision_kind()),
        None => Api::all_with(client.clone(), &revision_kind()),
    };
    let named = match &arguments.revision {
        Some((namespace, name)) => {
            let found = revisions.get_opt(name).await.map_err(error)?;
            vec![found.ok_or_else(|| format!("there is no revision {namespace}/{name}"))?]
        }
        None => {
            revisions
                .list(&ListParams::default())
                .await
                .map_err(error)?
                .items
        }
    };
    let begin = Instant::now();
    let limit = Duration::from_secs(arguments.timeout);
    let end = begin + limit;
    let writer = Writer::new(client);
    // A running role `control` detaches them as soon as the ConfigMap is written, so whether they are attached is read before.
    // It is only counted: a failed or slow read must not keep the ConfigMap from being written.
    let mut attached = Vec::with_capacity(named.len());
    for object in &named {
        let look = is_attached(&writer, object);
        let look = tokio::time::timeout_at(begin + limit / 2, look).await;
        attached.push(matches!(look, Ok(Ok(true))));
    }
    // The ConfigMap is written before any is detached: otherwise a running role `control` would attach the revisions again.
    record(&maps, &key).await.map_err(error)?;
    let mut detached = 0_u32;
    for (object, was_attached) in named.iter().zip(attached) {
        let done = one(&writer, object);
        match tokio::time::timeout_at(end, done).await {
            Ok(Ok(is_own)) => detached += u32::from(was_attached || is_own),
            Ok(Err(why)) => return Err(format!("{}: {why}", name_of(object))),
            Err(_) => {
                let limit = arguments.timeout;
                return Err(format!(
                    "{} is not detached after {limit} s",
                    name_of(object)
                ));
            }
        }
    }
    Ok(format!(
        "{detached} of {} revisions were attached, and go Knative's way now",
        named.len()
    ))
}

/// Adds `key` to the ConfigMap `weir-detached`, which role `control` watches.
async fn record(maps: &Api<ConfigMap>, key: &str) -> Result<(), kube::Error> {
    let patch = json!({"data": {key: ""}});
    let patched = maps
        .patch(DETACHED, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    let missing = match patched {
        Err(kube::Error::Api(status)) if status.code == 404 => true,
        other => return other.map(drop),
    };
    if missing {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(DETACHED.to_owned());
        map.data = Some([(key.to_owned(), String::new())].into());
        match maps.create(&PostParams::default(), &map).await {
            // There is no namespace: Weir has been or is being removed, so that no process attaches revisions.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {}
            other => drop(other?),
        }
    }
    Ok(())
}

/// Returns whether a revision is attached, in full or in part.
async fn is_attached(writer: &Writer, object: &DynamicObject) -> Result<bool, String> {
    let Some(revision) = revision(object) else {
        return Ok(false);
    };
    let look = writer
        .look(object)
        .await
        .map_err(|error| format!("{}: {error}", name_of(object)))?;
    let facts = Facts::of(&revision, false, &look, DETACHED_BY_HAND);
    let step = Attachment::default().next(Clock::start().now(), &facts.view());
    Ok(!matches!(step, Step::Rest(None)))
}

/// Detaches one revision. Returns whether it was attached, in full or in part.
async fn one(writer: &Writer, object: &DynamicObject) -> Result<bool, String> {
    let clock = Clock::start();
    let mut attachment = Attachment::default();
    let mut was_attached = false;
    let Some(revision) = revision(object) else {
        return Ok(false);
    };
    loop {
        let look = writer
            .look(object)
            .await
            .map_err(|error| error.to_string())?;
        let facts = Facts::of(&revision, false, &look, DETACHED_BY_HAND);
        match attachment.next(clock.now(), &facts.view()) {
            Step::Rest(None) => return Ok(was_attached),
            Step::Rest(Some(_)) => tokio::time::sleep(PAUSE).await,
            step => {
                was_attached = true;
                match writer.take(step, object, &look, &facts).await {
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                    other => other.map_err(|error| error.to_string())?,
                }
            }
        }
    }
}
