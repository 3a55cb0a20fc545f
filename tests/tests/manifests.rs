//! The manifests fit each other, and what the programs do. What a cluster says of them is `tests/cluster/check`'s.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "says what was not done")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use annotations::{KEYS, Part};
use serde_json::Value;

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests");

fn folders(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            folders(&path, found);
        } else if path
            .file_name()
            .is_some_and(|name| name == "kustomization.yaml")
        {
            found.push(folder.to_owned());
        }
    }
}

fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn base() -> Vec<Value> {
    let base = Path::new(MANIFESTS).join("base");
    let kustomization = &documents(&base.join("kustomization.yaml"))[0];
    let resources = kustomization["resources"].as_array().unwrap();
    let files = resources
        .iter()
        .map(|file| base.join(file.as_str().unwrap()));
    files.flat_map(|file| documents(&file)).collect()
}

fn name(object: &Value) -> String {
    let metadata = &object["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!(
        "{} {}/{}",
        text(&object["kind"]),
        text(&metadata["namespace"]),
        text(&metadata["name"])
    )
}

fn containers() -> Vec<Value> {
    let all = base();
    let deployments = all.iter().filter(|object| object["kind"] == "Deployment");
    let containers = deployments.flat_map(|it| {
        it["spec"]["template"]["spec"]["containers"]
            .as_array()
            .unwrap()
    });
    containers.cloned().collect()
}

#[test]
fn every_file_is_named_by_its_folder_and_every_object_once() {
    let mut found = Vec::new();
    folders(Path::new(MANIFESTS), &mut found);
    assert!(found.len() >= 2, "{found:?}");
    for folder in found {
        let kustomization = &documents(&folder.join("kustomization.yaml"))[0];
        let list = |of: &Value, key: &str| of[key].as_array().cloned().unwrap_or_default();
        let mut named: Vec<Value> = ["resources", "components", "configurations"]
            .iter()
            .flat_map(|key| list(kustomization, key))
            .collect();
        let patches = list(kustomization, "patches");
        named.extend(patches.iter().map(|patch| patch["path"].clone()));
        let generators = list(kustomization, "configMapGenerator");
        named.extend(generators.iter().flat_map(|it| list(it, "files")));
        let named: BTreeSet<_> = named
            .iter()
            .map(|it| folder.join(it.as_str().unwrap()))
            .collect();
        for path in &named {
            assert!(path.exists(), "{}", path.display());
        }
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let is_one = path.is_file() && path.file_name().unwrap() != "kustomization.yaml";
            assert!(
                !is_one || named.contains(&path),
                "{} is not used",
                path.display()
            );
        }
    }
    let names: Vec<_> = base().iter().map(name).collect();
    let unique: BTreeSet<_> = names.iter().collect();
    assert_eq!(names.len(), unique.len(), "{names:?}");
}

/// `control/leave.rs` lets go of these and of nothing else: another one would never be deleted.
#[test]
fn the_finalizer_is_on_what_role_control_lets_go_of_and_it_may_do_so() {
    let all = base();
    let kept: BTreeSet<_> = all
        .iter()
        .filter(|object| {
            let mut finalizers = object["metadata"]["finalizers"]
                .as_array()
                .into_iter()
                .flatten();
            finalizers.any(|finalizer| finalizer == "weir.dev/detach")
        })
        .map(name)
        .collect();
    let expected = [
        "ClusterRole /weir-control",
        "ClusterRoleBinding /weir-control",
        "Deployment weir-system/weir-control",
        "Role weir-system/weir-control",
        "RoleBinding weir-system/weir-control",
        "ServiceAccount weir-system/weir-control",
    ];
    assert_eq!(kept, expected.map(str::to_owned).into());
    let rules = |kind: &str, namespace: &str| {
        let role = format!("{kind} {namespace}/weir-control");
        let role = all.iter().find(|object| name(object) == role).unwrap();
        role["rules"].as_array().unwrap().clone()
    };
    let may_patch = |rules: &[Value], resource: &str| {
        rules.iter().any(|rule| {
            let has = |key: &str, wanted: &str| {
                let mut values = rule[key].as_array().into_iter().flatten();
                values.any(|value| value == wanted)
            };
            has("resources", resource)
                && has("verbs", "patch")
                && has("verbs", "get")
                && has("resourceNames", "weir-control")
        })
    };
    let (cluster, own) = (rules("ClusterRole", ""), rules("Role", "weir-system"));
    for resource in ["clusterroles", "clusterrolebindings"] {
        assert!(may_patch(&cluster, resource), "{resource}");
    }
    for resource in ["deployments", "serviceaccounts", "roles", "rolebindings"] {
        assert!(may_patch(&own, resource), "{resource}");
    }
}

#[test]
fn containers_are_restricted_and_started_as_the_program_allows() {
    let containers = containers();
    assert_eq!(containers.len(), 2);
    let ports = BTreeSet::from([8012, 8013, 8112, 9443, 9475, 9476]);
    for container in &containers {
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["readOnlyRootFilesystem"], true);
        assert_eq!(context["capabilities"]["drop"][0], "ALL");
        for port in container["ports"].as_array().unwrap() {
            assert!(
                ports.contains(&port["containerPort"].as_u64().unwrap()),
                "{port}"
            );
        }
        let arguments = container["args"].as_array().unwrap().iter();
        let output = Command::new(env!("CARGO_BIN_EXE_activator-ext-under-test"))
            .args(arguments.map(|argument| argument.as_str().unwrap()))
            .arg("--help")
            .output()
            .unwrap();
        assert!(output.status.success(), "{container}");
    }
}

/// The API server decides by them which pods wait for the webhook.
#[test]
fn the_webhooks_conditions_name_all_keys_about_the_gpu_and_no_other() {
    let all = base();
    let hooks = all
        .iter()
        .find(|object| object["kind"] == "MutatingWebhookConfiguration")
        .unwrap();
    let gpu = KEYS.iter().filter(|key| key.part == Part::Gpu);
    let gpu: Vec<_> = gpu.map(|key| format!("'weir.dev/{}'", key.name)).collect();
    let hooks = hooks["webhooks"].as_array().unwrap();
    for hook in hooks {
        let conditions = hook["matchConditions"].as_array().unwrap();
        let listed = conditions.iter().filter_map(|condition| {
            let (_, list) = condition["expression"].as_str()?.split_once("key in [")?;
            let list = list.split_once(']')?.0.split(',');
            Some(list.map(|key| key.trim().to_owned()).collect::<Vec<_>>())
        });
        let listed: Vec<_> = listed.collect();
        assert_eq!(listed, std::slice::from_ref(&gpu), "{hook}");
    }
    let policies = hooks.iter().map(|hook| hook["failurePolicy"].clone());
    assert_eq!(policies.collect::<Vec<_>>(), ["Fail", "Ignore"]);
}

/// Never Knative's own label: its Service would send to our pods.
#[test]
fn no_object_has_the_label_by_which_knative_finds_its_activator() {
    let mut found = Vec::new();
    folders(Path::new(MANIFESTS), &mut found);
    for folder in found {
        for entry in fs::read_dir(&folder).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            assert!(!text.contains("app: activator"), "{}", folder.display());
        }
    }
}

#[test]
fn every_overlay_is_rendered_by_kubectl_where_there_is_one() {
    let overlays = Path::new(MANIFESTS).join("overlays");
    if Command::new("kubectl")
        .arg("version")
        .arg("--client")
        .output()
        .is_err()
    {
        eprintln!("kubectl is not installed: overlays were not rendered");
        return;
    }
    for entry in fs::read_dir(overlays).unwrap() {
        let path = entry.unwrap().path();
        let output = Command::new("kubectl")
            .arg("kustomize")
            .arg(&path)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {error}", path.display());
        let text = String::from_utf8(output.stdout).unwrap();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        assert!(objects.len() >= base().len(), "{}", path.display());
        for object in &objects {
            let label = &object["metadata"]["labels"]["app.kubernetes.io/part-of"];
            assert_eq!(label, "weir", "{}", name(object));
        }
    }
}
