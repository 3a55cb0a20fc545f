//! The manifests are consistent with each other and with the programs. `tests/cluster/check` tests them on a cluster.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "reports skipped checks")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use annotations::{KEYS, Part};
use dashboards::boards::boards;
use k8s_openapi::serde::{Serialize, de::DeserializeOwned};
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
fn every_file_is_used_by_its_folder_and_every_object_is_unique() {
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

/// `control/leave.rs` removes the finalizer of exactly these objects: any other one would never be deleted.
#[test]
fn the_finalizer_is_on_exactly_the_objects_that_role_control_may_release() {
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
fn containers_are_restricted_and_their_arguments_are_valid() {
    let containers = containers();
    assert_eq!(containers.len(), 2);
    for container in &containers {
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["readOnlyRootFilesystem"], true);
        assert_eq!(context["capabilities"]["drop"][0], "ALL");
        let arguments = container["args"].as_array().unwrap().iter();
        let output = Command::new(env!("CARGO_BIN_EXE_activator-ext-under-test"))
            .args(arguments.map(|argument| argument.as_str().unwrap()))
            .arg("--help")
            .output()
            .unwrap();
        assert!(output.status.success(), "{container}");
    }
}

/// By these conditions the API server decides which pods wait for the webhook.
#[test]
fn the_webhooks_conditions_name_exactly_the_gpu_keys() {
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

/// Never Knative's own label: its Service would send requests to Weir's pods.
#[test]
fn no_object_has_the_label_of_knatives_activator() {
    let mut found = Vec::new();
    folders(Path::new(MANIFESTS), &mut found);
    for folder in found {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let text = fs::read_to_string(&path).unwrap();
                assert!(!text.contains("app: activator"), "{}", path.display());
            }
        }
    }
}

/// Returns the objects of the committed file of an overlay.
fn rendered(overlay: &str) -> Vec<Value> {
    documents(&Path::new(MANIFESTS).join(format!("rendered/{overlay}.yaml")))
}

fn overlays() -> Vec<String> {
    let overlays = fs::read_dir(Path::new(MANIFESTS).join("overlays")).unwrap();
    let names = overlays.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<_> = names.collect();
    assert_eq!(names.len(), 3, "{names:?}");
    names
}

/// Returns whether kubectl is installed in a version that renders like the committed files: 1.27 or newer.
fn has_kubectl() -> bool {
    let output = Command::new("kubectl")
        .args(["version", "--client", "--output=json"])
        .output();
    let minor = output.ok().and_then(|output| {
        let version: Value = serde_json::from_slice(&output.stdout).ok()?;
        let minor = version["clientVersion"]["minor"].as_str()?;
        minor.trim_end_matches('+').parse::<u32>().ok()
    });
    minor.is_some_and(|minor| minor >= 27)
}

#[test]
fn the_rendered_files_match_their_overlays() {
    let is_there = has_kubectl();
    if !is_there {
        eprintln!(
            "kubectl 1.27 or newer is not installed: the committed rendered files alone were checked"
        );
    }
    for overlay in overlays() {
        let committed = rendered(&overlay);
        assert!(committed.len() >= base().len(), "{overlay}");
        let names: BTreeSet<_> = committed.iter().map(name).collect();
        assert_eq!(names.len(), committed.len(), "{overlay}");
        for object in base() {
            assert!(
                names.contains(&name(&object)),
                "{overlay}: {}",
                name(&object)
            );
        }
        for object in &committed {
            let label = &object["metadata"]["labels"]["app.kubernetes.io/part-of"];
            assert_eq!(label, "weir", "{}", name(object));
        }
        if !is_there {
            continue;
        }
        let output = Command::new("kubectl")
            .arg("kustomize")
            .arg(Path::new(MANIFESTS).join("overlays").join(&overlay))
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{overlay}: {error}");
        let text = String::from_utf8(output.stdout).unwrap();
        let now: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        assert!(
            now == committed,
            "{overlay}: the file differs from the output of manifests/render"
        );
    }
}

#[test]
fn components_can_be_added_to_their_overlays() {
    if !has_kubectl() {
        eprintln!("kubectl 1.27 or newer is not installed: components were not rendered");
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // Knative's own ConfigMap, as in its manifests.
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: config-deployment, namespace: knative-serving}\ndata: {_example: x}\n";
    fs::write(folder.path().join("knative.yaml"), config).unwrap();
    let up = "../".repeat(folder.path().canonicalize().unwrap().components().count() - 1);
    let manifests = Path::new(MANIFESTS).canonicalize().unwrap();
    let manifests = format!("{up}{}", manifests.strip_prefix("/").unwrap().display());
    let kustomization = format!(
        "resources: [{manifests}/overlays/softgpu, {manifests}/overlays/operator/knative, knative.yaml]\n\
         components: [{manifests}/components/monitoring, {manifests}/components/grafana-operator, {manifests}/components/network-policies, {manifests}/components/cluster-wide-queue-proxy]\n"
    );
    // Both include Knative's namespace.
    let kustomization = kustomization.replace(
        "/overlays/operator/knative,",
        "/overlays/operator/knative/knative-serving.yaml,",
    );
    fs::write(folder.path().join("kustomization.yaml"), kustomization).unwrap();
    let output = Command::new("kubectl")
        .args(["kustomize", "--load-restrictor=LoadRestrictionsNone"])
        .arg(folder.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let count = |kind: &str| objects.iter().filter(|it| it["kind"] == kind).count();
    assert_eq!((count("PodMonitor"), count("NetworkPolicy")), (4, 3));
    assert_eq!(count("PrometheusRule"), 2);
    let boards = boards();
    assert_eq!(count("GrafanaDashboard"), boards.len());
    for board in boards {
        let is_own =
            |it: &&Value| it["kind"] == "GrafanaDashboard" && it["metadata"]["name"] == board.uid;
        let reference = &objects.iter().find(is_own).unwrap()["spec"]["configMapRef"];
        let is_map =
            |it: &&Value| it["kind"] == "ConfigMap" && it["metadata"]["name"] == reference["name"];
        let map = objects.iter().find(is_map).unwrap();
        assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
        assert_eq!(map["metadata"]["annotations"]["grafana_folder"], "Weir");
        let text = map["data"][reference["key"].as_str().unwrap()]
            .as_str()
            .unwrap();
        let json: Value = serde_json::from_str(text).unwrap();
        assert_eq!(json, board.json());
    }
    let one = |kind: &str, name: &str| {
        let mut all = objects.iter();
        all.find(|it| it["kind"] == kind && it["metadata"]["name"] == name)
            .unwrap()
    };
    let image = "ghcr.io/weir/queue-proxy:0.1.0";
    let map = one("ConfigMap", "config-deployment");
    assert_eq!(map["data"]["queue-sidecar-image"], image);
    assert_eq!(map["data"]["_example"], "x", "the rest of it stays");
    let serving = one("KnativeServing", "knative-serving");
    assert_eq!(
        serving["spec"]["config"]["deployment"]["queue-sidecar-image"],
        image
    );
}

/// Collects the keys of `written` that `read` lacks or has with another value. An empty object counts as missing.
fn lost(path: &str, written: &Value, read: &Value, found: &mut Vec<String>) {
    match (written, read) {
        (Value::Object(own), _) => {
            for (key, value) in own {
                lost(&format!("{path}.{key}"), value, &read[key], found);
            }
        }
        (Value::Array(own), Value::Array(other)) if own.len() == other.len() => {
            for (index, (value, other)) in own.iter().zip(other).enumerate() {
                lost(&format!("{path}[{index}]"), value, other, found);
            }
        }
        (Value::Array(own), Value::Null) if own.is_empty() => {}
        _ if written == read => {}
        _ => found.push(path.to_owned()),
    }
}

/// Objects must survive parsing by the types of Kubernetes' own API: unknown or retyped fields are mistakes in the manifests.
#[test]
fn every_object_fits_the_types_of_the_kubernetes_api() {
    fn read<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
        let typed: T = serde_json::from_value(object.clone())
            .unwrap_or_else(|error| panic!("{}: {error}", name(object)));
        serde_json::to_value(typed).unwrap()
    }
    use k8s_openapi::api::{
        admissionregistration::v1 as admission, apps::v1 as apps, core::v1 as core,
        networking::v1 as networking, policy::v1 as policy, rbac::v1 as rbac,
        scheduling::v1 as scheduling, storage::v1 as storage,
    };
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions;
    let mut kinds = BTreeSet::new();
    let mut objects: Vec<Value> = overlays().iter().flat_map(|it| rendered(it)).collect();
    objects.extend(documents(
        &Path::new(MANIFESTS).join("components/network-policies/policies.yaml"),
    ));
    for object in &objects {
        let kind = object["kind"].as_str().unwrap();
        let known = match kind {
            "ClusterRole" => read::<rbac::ClusterRole>(object),
            "ClusterRoleBinding" => read::<rbac::ClusterRoleBinding>(object),
            "ConfigMap" => read::<core::ConfigMap>(object),
            "CSIDriver" => read::<storage::CSIDriver>(object),
            "CustomResourceDefinition" => read::<extensions::CustomResourceDefinition>(object),
            "DaemonSet" => read::<apps::DaemonSet>(object),
            "Deployment" => read::<apps::Deployment>(object),
            "MutatingWebhookConfiguration" => {
                read::<admission::MutatingWebhookConfiguration>(object)
            }
            "Namespace" => read::<core::Namespace>(object),
            "NetworkPolicy" => read::<networking::NetworkPolicy>(object),
            "PodDisruptionBudget" => read::<policy::PodDisruptionBudget>(object),
            "PriorityClass" => read::<scheduling::PriorityClass>(object),
            "Role" => read::<rbac::Role>(object),
            "RoleBinding" => read::<rbac::RoleBinding>(object),
            "Secret" => read::<core::Secret>(object),
            "Service" => read::<core::Service>(object),
            "ServiceAccount" => read::<core::ServiceAccount>(object),
            "ValidatingAdmissionPolicy" => read::<admission::ValidatingAdmissionPolicy>(object),
            "ValidatingAdmissionPolicyBinding" => {
                read::<admission::ValidatingAdmissionPolicyBinding>(object)
            }
            "ValidatingWebhookConfiguration" => {
                read::<admission::ValidatingWebhookConfiguration>(object)
            }
            other => panic!("no type for {other}"),
        };
        let mut found = Vec::new();
        lost("", object, &known, &mut found);
        assert!(found.is_empty(), "{}: {found:?}", name(object));
        kinds.insert(kind);
    }
    assert!(kinds.len() >= 19, "{kinds:?}");
}

/// Variables set by the manifests are read by a program.
#[test]
fn every_variable_is_read_by_a_program() {
    let sources = Path::new(MANIFESTS).join("..");
    let mut text = String::new();
    for folder in ["activator-ext/src", "gpu-sidecar", "proxy/src", "weir/src"] {
        read_sources(&sources.join(folder), &mut text);
    }
    // Read by NVIDIA's container runtime and by NVML.
    let others = ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"];
    let mut names = BTreeSet::new();
    for object in overlays().iter().flat_map(|it| rendered(it)) {
        let spec = &object["spec"]["template"]["spec"];
        let parts = ["containers", "initContainers"];
        let containers = parts.iter().flat_map(|key| spec[*key].as_array()).flatten();
        for variable in containers.flat_map(|it| it["env"].as_array()).flatten() {
            names.insert(variable["name"].as_str().unwrap().to_owned());
        }
    }
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        let is_read = others.contains(&&*name) || text.contains(&format!("\"{name}\""));
        assert!(is_read, "{name} is set, and nothing reads it");
    }
}

fn read_sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_sources(&path, text);
        } else if path.extension().is_some_and(|it| it == "rs") {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// Returns the pod templates of an overlay.
fn pod_templates(overlay: &str) -> Vec<Value> {
    let objects = rendered(overlay);
    let templates = objects.iter().map(|object| &object["spec"]["template"]);
    templates.filter(|it| it.is_object()).cloned().collect()
}

/// Returns the ports of a pod's containers, by name.
fn ports(template: &Value) -> BTreeMap<String, u64> {
    let containers = template["spec"]["containers"].as_array().unwrap();
    let ports = containers
        .iter()
        .flat_map(|it| it["ports"].as_array())
        .flatten();
    ports
        .map(|port| {
            let name = port["name"].as_str().unwrap().to_owned();
            (name, port["containerPort"].as_u64().unwrap())
        })
        .collect()
}

#[test]
fn pods_have_exactly_the_ports_of_their_programs() {
    let templates = pod_templates("softgpu");
    let named: BTreeSet<_> = templates
        .iter()
        .flat_map(|it| ports(it).into_values())
        .collect();
    // `activator_ext::{service, admin, metrics, control::webhook}`, and the agent's two in its configuration.
    let listened = [8012, 8013, 8112, 9443, 9470, 9471, 9475, 9476];
    assert_eq!(named, listened.into());
}

#[test]
fn monitors_and_network_policies_name_existing_pods_and_ports() {
    let templates = pod_templates("softgpu");
    let of = |labels: &Value| {
        let name = &labels["app.kubernetes.io/name"];
        let mut all = templates.iter();
        all.find(|it| it["metadata"]["labels"]["app.kubernetes.io/name"] == *name)
            .map(ports)
    };
    let components = Path::new(MANIFESTS).join("components");
    let monitors = documents(&components.join("monitoring/monitors.yaml"));
    assert_eq!(monitors.len(), 4);
    for monitor in &monitors {
        let spec = &monitor["spec"];
        let endpoint = &spec["podMetricsEndpoints"][0];
        let labels = &spec["selector"]["matchLabels"];
        // A user's pod must not override its namespace or job.
        assert_eq!(endpoint["honorLabels"], !labels.is_null(), "{monitor}");
        let port = endpoint["port"].as_str().unwrap();
        if labels.is_null() {
            for limit in ["sampleLimit", "labelLimit", "labelValueLengthLimit"] {
                assert!(spec[limit].is_u64(), "{monitor}");
            }
            // Container queue-proxy, as Knative's controller creates it.
            assert_eq!(port, "http-usermetric");
            continue;
        }
        let ports = of(labels).unwrap_or_else(|| panic!("{monitor} selects no pod"));
        assert!(matches!(ports.get(port), Some(9471 | 9476)), "{monitor}");
    }
    let mut policies = documents(&components.join("network-policies/policies.yaml"));
    policies.extend(documents(&components.join("agent/network.yaml")));
    assert_eq!(policies.len(), 3);
    for policy in &policies {
        let labels = &policy["spec"]["podSelector"]["matchLabels"];
        let of_pod = of(labels).unwrap_or_else(|| panic!("{policy} selects no pod"));
        let rules = policy["spec"]["ingress"].as_array().unwrap().iter();
        let allowed: BTreeSet<_> = rules
            .flat_map(|rule| rule["ports"].as_array().unwrap())
            .map(|port| port["port"].as_u64().unwrap())
            .collect();
        assert_eq!(allowed, of_pod.into_values().collect(), "{policy}");
    }
}

/// Runs Argo CD's script on statuses as written by `control::functions::status`.
#[test]
fn argo_cd_considers_a_ready_function_healthy() {
    let script = Path::new(MANIFESTS).join("../docs/gitops/argo-cd/health.lua");
    let health = |status: &str| {
        let lines = format!(
            "obj = {{ status = {status} }} print(assert(loadfile('{}'))().status)",
            script.display()
        );
        let output = Command::new("lua5.4").args(["-e", &lines]).output().ok()?;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    };
    if health("nil").is_none() {
        eprintln!("lua5.4 is not installed: health.lua was not run");
        return;
    }
    let ready = |status: &str, reason: &str| {
        let own =
            format!("{{ type = 'Ready', status = '{status}', reason = '{reason}', message = '' }}");
        health(&format!("{{ conditions = {{ {own} }} }}")).unwrap()
    };
    assert_eq!(health("nil").unwrap(), "Progressing");
    assert_eq!(ready("True", "Serving"), "Healthy");
    assert_eq!(ready("False", "NoDataPodReady"), "Degraded");
    assert_eq!(ready("False", "Waiting"), "Progressing");
    assert_eq!(ready("Unknown", "AgentsSilent"), "Progressing");
    assert_eq!(ready("False", "DetachedByHand"), "Suspended");
}
