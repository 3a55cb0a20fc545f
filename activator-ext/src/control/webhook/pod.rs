//! Changes of the pod webhook to a pod (contracts §10): a pure function, and idempotent.

use annotations::review::review;
use annotations::values::quantity;
use annotations::{Evict, Isolation, KEYS, PREFIX, Settings, variable};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Map, Value, json};

/// The name of Knative's sidecar container.
const QUEUE_PROXY: &str = "queue-proxy";
/// The variable which Knative sets in the containers of a revision's template, and in no other.
const USER_VARIABLE: &str = "K_REVISION";
/// Name of the CSI driver, served by the agent.
pub(crate) const DRIVER: &str = "csi.weir.dev";
/// Name of the volume, unless another volume has it.
const VOLUME: &str = "weir";
/// Mount path of the agent's files in a container.
const MOUNT: &str = "/weir";
/// Mount path of the MPS daemon's pipe in a user container.
pub(crate) const MPS_MOUNT: &str = "/weir-mps";
/// Mount path of the software GPU: the same as on the node, since the path determines the software GPU's UUIDs.
const SOFTGPU_MOUNT: &str = "/run/weir/softgpu";
/// Mount path of the memory which MPS shares between processes.
const SHM_MOUNT: &str = "/dev/shm";
/// Path of the preload library in a container.
const PRELOAD: &str = "/weir/libweir_preload.so";
/// Number of bytes of a MiB.
const MIB: u64 = 1 << 20;

/// The settings which are the same for all pods.
#[derive(Debug, Clone, Default)]
pub(crate) struct Delivery {
    /// The image of the container `queue-proxy`; `None`: it is not changed.
    pub(crate) queue_proxy_image: Option<String>,
    /// The runtime class of pods that name none; `None`: it is not set.
    pub(crate) runtime_class: Option<String>,
    /// Whether the nodes' GPUs are software GPUs, whose library the volume delivers.
    pub(crate) software_gpu: bool,
}

/// Returns the changed spec of a pod; `None` if nothing changes.
///
/// # Errors
///
/// Fails with one sentence about the part of the pod that prevents the change.
pub(crate) fn deliver(pod: &DynamicObject, delivery: &Delivery) -> Result<Option<Value>, String> {
    let Some(before) = pod.data.get("spec") else {
        return Ok(None);
    };
    let mut spec = before.clone();
    let has_proxy = containers(&mut spec, "containers").any(|it| name(it) == QUEUE_PROXY);
    let own = pod.annotations().iter();
    let own = own.map(|(key, value)| (key.as_str(), value.as_str()));
    // Invalid annotations were reported at the revision; the queue-proxy uses their defaults.
    let (settings, _) = review(own);
    if !has_proxy || !settings.opted_in() {
        return Ok(None);
    }
    for proxy in containers(&mut spec, "containers").filter(|it| name(it) == QUEUE_PROXY) {
        adopt(proxy, pod, delivery);
    }
    if settings.uses_gpu() {
        let volume = volume(&mut spec, pod);
        mount_all(&mut spec, &volume, &settings, delivery)?;
        request(&mut spec, &settings);
        if let Some(class) = &delivery.runtime_class
            && spec.get("runtimeClassName").is_none_or(Value::is_null)
        {
            spec["runtimeClassName"] = json!(class);
        }
    }
    Ok((spec != *before).then_some(spec))
}

fn containers<'a>(spec: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = spec.get_mut(list).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter(|it| it.is_object())
}

fn name(container: &Value) -> &str {
    container["name"].as_str().unwrap_or_default()
}

/// Returns the list at a key, and inserts an empty one if there is none.
fn list<'a>(object: &'a mut Value, key: &str) -> &'a mut Vec<Value> {
    let place = &mut object[key];
    if !place.is_array() {
        *place = json!([]);
    }
    match place {
        Value::Array(list) => list,
        _ => unreachable!("the value was replaced by a list"),
    }
}

/// Returns the object at a key, and inserts an empty one if there is none.
fn map<'a>(object: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    let place = &mut object[key];
    if !place.is_object() {
        *place = json!({});
    }
    match place {
        Value::Object(map) => map,
        _ => unreachable!("the value was replaced by an object"),
    }
}

/// Sets an environment variable, replacing one of the same name.
fn set(container: &mut Value, name: &str, value: &str) {
    let variables = list(container, "env");
    let new = json!({ "name": name, "value": value });
    match variables.iter_mut().find(|it| it["name"] == name) {
        Some(there) => *there = new,
        None => variables.push(new),
    }
}

/// Prepends `value` to the list in an environment variable. Fails if the variable is set by `valueFrom`.
fn prepend(container: &mut Value, name: &str, value: &str) -> Result<(), String> {
    let of = self::name(container).to_owned();
    let variables = list(container, "env");
    let Some(there) = variables.iter().position(|it| it["name"] == name) else {
        variables.push(json!({ "name": name, "value": value }));
        return Ok(());
    };
    let there = &mut variables[there];
    if there.get("valueFrom").is_some_and(|from| !from.is_null()) {
        return Err(format!(
            "container {of}: {name} is set by valueFrom and cannot be extended; allowed: a value, or \
             weir.dev/skip-containers: {of}"
        ));
    }
    let before = there["value"].as_str().unwrap_or_default();
    if before.split([':', ' ']).any(|part| part == value) {
        return Ok(());
    }
    there["value"] = if before.is_empty() {
        json!(value)
    } else {
        json!(format!("{value}:{before}"))
    };
    Ok(())
}

/// Sets image and options of the container `queue-proxy`.
fn adopt(proxy: &mut Value, pod: &DynamicObject, delivery: &Delivery) {
    if let Some(image) = &delivery.queue_proxy_image {
        proxy["image"] = json!(image);
    }
    for key in KEYS {
        if let Some(value) = pod.annotations().get(&format!("{PREFIX}{}", key.name)) {
            set(proxy, &variable(key), value);
        }
    }
}

/// Returns the name of the agent's volume, and adds the volume if there is none.
fn volume(spec: &mut Value, pod: &DynamicObject) -> String {
    let volumes = list(spec, "volumes");
    let there = volumes.iter().position(|it| it["csi"]["driver"] == DRIVER);
    let position = there.unwrap_or_else(|| {
        let mut name = VOLUME.to_owned();
        let mut number = 2;
        while volumes.iter().any(|it| it["name"] == name) {
            name = format!("{VOLUME}-{number}");
            number += 1;
        }
        volumes.push(json!({ "name": name, "csi": { "driver": DRIVER } }));
        volumes.len() - 1
    });
    let attributes = map(&mut volumes[position]["csi"], "volumeAttributes");
    let own = pod.annotations().iter();
    for (key, value) in own.filter(|(key, _)| key.starts_with(PREFIX)) {
        attributes.insert(key.clone(), json!(value));
    }
    let label = |key: &str| pod.labels().get(&format!("serving.knative.dev/{key}"));
    if let Some(revision) = label("revision") {
        attributes.insert("revision".to_owned(), json!(revision));
    }
    // The label `function` of metrics (contracts §4).
    let function = pod.annotations().get("weir.dev/function");
    let function = function.or_else(|| label("service"));
    if let Some(function) = function.or_else(|| label("configuration")) {
        attributes.insert("function".to_owned(), json!(function));
    }
    volumes[position]["name"]
        .as_str()
        .unwrap_or(VOLUME)
        .to_owned()
}

/// Mounts a folder of the volume. An equal mount is kept; fails if another volume is mounted at the path.
fn mount(
    container: &mut Value,
    volume: &str,
    folder: &str,
    path: &str,
    is_read_only: bool,
) -> Result<(), String> {
    let of = name(container).to_owned();
    let mounts = list(container, "volumeMounts");
    let there = mounts.iter().find(|it| {
        let there = it["mountPath"].as_str().unwrap_or_default();
        there.trim_end_matches('/') == path
    });
    match there {
        Some(there) if there["name"] == volume && there["subPath"] == folder => Ok(()),
        Some(there) => {
            let other = there["name"].as_str().unwrap_or_default();
            let why = if path == SHM_MOUNT {
                ", as weir.dev/isolation: shared needs it for MPS; its size is the agent's"
            } else {
                ""
            };
            Err(format!(
                "container {of}: volume {other} is mounted at {path}, which Weir needs{why}; allowed: another path"
            ))
        }
        None => {
            mounts.push(json!({
                "name": volume, "mountPath": path, "subPath": folder, "readOnly": is_read_only,
            }));
            Ok(())
        }
    }
}

fn mount_all(
    spec: &mut Value,
    volume: &str,
    settings: &Settings,
    delivery: &Delivery,
) -> Result<(), String> {
    for kind in ["initContainers", "containers"] {
        for container in containers(spec, kind) {
            let name = name(container).to_owned();
            if name == QUEUE_PROXY {
                mount(container, volume, "lease", MOUNT, true)?;
            } else if is_users(container) && !settings.skip_containers.contains(&name) {
                gate(container, volume, settings, delivery)?;
            }
        }
    }
    Ok(())
}

/// Returns whether a container is part of the revision's template, and not added by another webhook.
fn is_users(container: &Value) -> bool {
    let variables = container["env"].as_array();
    let mut variables = variables.into_iter().flatten();
    variables.any(|it| it["name"] == USER_VARIABLE)
}

/// Mounts the agent's files into a user container and preloads the library.
fn gate(
    container: &mut Value,
    volume: &str,
    settings: &Settings,
    delivery: &Delivery,
) -> Result<(), String> {
    mount(container, volume, "gate", MOUNT, true)?;
    prepend(container, "LD_PRELOAD", PRELOAD)?;
    if settings.isolation == Isolation::Shared {
        mount(container, volume, "mps", MPS_MOUNT, true)?;
        mount(container, volume, "shm", SHM_MOUNT, false)?;
        set(container, "CUDA_MPS_PIPE_DIRECTORY", MPS_MOUNT);
    }
    if delivery.software_gpu {
        mount(container, volume, "softgpu", SOFTGPU_MOUNT, true)?;
        set(container, "WEIR_SOFTGPU", SOFTGPU_MOUNT);
        return prepend(container, "LD_LIBRARY_PATH", SOFTGPU_MOUNT);
    }
    let has_devices = list(container, "env")
        .iter()
        .any(|it| it["name"] == "NVIDIA_VISIBLE_DEVICES");
    if !has_devices {
        set(container, "NVIDIA_VISIBLE_DEVICES", "all");
    }
    Ok(())
}

/// Sets the requests and limits for the scheduler on the first user container.
fn request(spec: &mut Value, settings: &Settings) {
    let mut wanted = vec![("weir.dev/seats", 1)];
    if let Some(memory) = settings
        .gpu_memory
        .filter(|_| settings.evict == Evict::Host)
    {
        wanted.push(("weir.dev/host-memory-mib", memory.div_ceil(MIB)));
    }
    if settings.isolation == Isolation::Shared {
        // Permille of a slot: the requested SMs multiplied by the guaranteed share of their time.
        let share = u64::from(settings.sm_hundredths) * u64::from(settings.quota_request_ppm);
        let permille = share.div_ceil(10_000 * 1_000);
        if permille > 0 {
            wanted.push(("weir.dev/plan-permille", permille));
        }
    }
    let mut all = containers(spec, "containers");
    let Some(first) = all.find(|it| is_users(it) && name(it) != QUEUE_PROXY) else {
        return;
    };
    const SIDES: [&str; 2] = ["requests", "limits"];
    for (resource, amount) in wanted {
        // A larger amount is kept; a smaller one would make the scheduler count less than the annotations request.
        let given = SIDES.iter().filter_map(|side| {
            let own = &first["resources"][*side][resource];
            Some((own.clone(), quantity(own.as_str()?).ok()?))
        });
        let most = given.max_by_key(|(_, own)| *own);
        let most = most.filter(|(_, own)| *own >= amount);
        let value = most.map_or_else(|| json!(amount.to_string()), |(own, _)| own);
        // The API rejects an extended resource whose request and limit differ.
        for side in SIDES {
            let resources = map(&mut first["resources"], side);
            resources.insert(resource.to_owned(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotations: Value, containers: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "namespace": "default", "generateName": "hello-00001-deployment-abc-",
                "annotations": annotations,
                "labels": {
                    "serving.knative.dev/revision": "hello-00001", "serving.knative.dev/service": "hello",
                    "serving.knative.dev/configuration": "hello",
                },
            },
            "spec": { "containers": containers, "volumes": [] },
        }))
        .unwrap()
    }

    fn both() -> Value {
        json!([
            { "name": "user-container", "image": "hello", "env": [{ "name": "K_REVISION", "value": "hello-00001" }] },
            { "name": "queue-proxy", "image": "knative", "env": [{ "name": "WEIR_SLO", "value": "1h" }] },
        ])
    }

    fn delivery() -> Delivery {
        Delivery {
            queue_proxy_image: Some("weir/queue-proxy@sha256:1".to_owned()),
            runtime_class: Some("nvidia".to_owned()),
            software_gpu: false,
        }
    }

    fn delivered(pod: &DynamicObject) -> Value {
        deliver(pod, &delivery()).unwrap().expect("it is changed")
    }

    fn variable_of(container: &Value, name: &str) -> Option<String> {
        let all = container["env"].as_array()?;
        let one = all.iter().find(|it| it["name"] == name)?;
        one["value"].as_str().map(str::to_owned)
    }

    #[test]
    fn a_function_without_gpu_keys_gets_only_the_queue_proxy_and_its_options() {
        let spec = delivered(&pod(json!({ "weir.dev/slo": "200ms" }), both()));
        let proxy = &spec["containers"][1];
        assert_eq!(proxy["image"], "weir/queue-proxy@sha256:1");
        assert_eq!(variable_of(proxy, "WEIR_SLO").unwrap(), "200ms");
        assert_eq!(spec["containers"][0], both()[0]);
        assert_eq!(spec["volumes"], json!([]));
        assert_eq!(spec.get("runtimeClassName"), None);
    }

    #[test]
    fn unrelated_pods_are_unchanged() {
        let alone = json!([{ "name": "user-container" }]);
        for (annotations, containers) in [
            (json!({ "weir.dev/slo": "1s" }), alone),
            (json!({}), both()),
            (json!({ "weir.dev/limit-streams": "10" }), both()),
        ] {
            let pod = pod(annotations, containers);
            assert_eq!(deliver(&pod, &delivery()).unwrap(), None, "{pod:?}");
        }
    }

    #[test]
    fn a_gpu_function_gets_the_volume_the_library_and_resource_requests() {
        let spec = delivered(&pod(
            json!({
                "weir.dev/isolation": "shared", "weir.dev/sm-percent": "50", "weir.dev/quota-request": "0.25",
                "weir.dev/gpu-memory": "1Gi",
            }),
            both(),
        ));
        let user = &spec["containers"][0];
        assert_eq!(variable_of(user, "LD_PRELOAD").unwrap(), PRELOAD);
        assert_eq!(variable_of(user, "NVIDIA_VISIBLE_DEVICES").unwrap(), "all");
        assert_eq!(
            variable_of(user, "CUDA_MPS_PIPE_DIRECTORY").unwrap(),
            MPS_MOUNT
        );
        let folders: Vec<_> = user["volumeMounts"].as_array().unwrap().iter().collect();
        let shown: Vec<_> = folders
            .iter()
            .map(|it| {
                (
                    it["subPath"].as_str().unwrap(),
                    it["mountPath"].as_str().unwrap(),
                    it["readOnly"].as_bool().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("gate", "/weir", true),
                ("mps", "/weir-mps", true),
                ("shm", "/dev/shm", false)
            ]
        );
        assert_eq!(
            user["resources"]["limits"],
            json!({ "weir.dev/seats": "1", "weir.dev/host-memory-mib": "1024", "weir.dev/plan-permille": "125" })
        );
        assert_eq!(user["resources"]["limits"], user["resources"]["requests"]);
        let proxy = &spec["containers"][1];
        assert_eq!(proxy["volumeMounts"][0]["subPath"], "lease");
        assert_eq!(spec["runtimeClassName"], "nvidia");
        let attributes = &spec["volumes"][0]["csi"]["volumeAttributes"];
        assert_eq!(attributes["weir.dev/sm-percent"], "50");
        assert_eq!(attributes["function"], "hello");
        assert_eq!(attributes["revision"], "hello-00001");
    }

    #[test]
    fn existing_volumes_and_variables_are_kept_and_extended() {
        let mut containers = both();
        containers[0]["env"]
            .as_array_mut()
            .unwrap()
            .push(json!({ "name": "LD_PRELOAD", "value": "/lib/own.so" }));
        let mut own = pod(json!({ "weir.dev/evict": "never" }), containers);
        own.data["spec"]["runtimeClassName"] = json!("other");
        own.data["spec"]["volumes"] = json!([{ "name": "weir", "emptyDir": {} }]);
        let spec = delivered(&own);
        let user = &spec["containers"][0];
        assert_eq!(
            variable_of(user, "LD_PRELOAD").unwrap(),
            format!("{PRELOAD}:/lib/own.so")
        );
        assert_eq!(spec["runtimeClassName"], "other");
        assert_eq!(
            spec["volumes"][0],
            json!({ "name": "weir", "emptyDir": {} })
        );
        assert_eq!(spec["volumes"][1]["name"], "weir-2");
        assert_eq!(user["volumeMounts"][0]["name"], "weir-2");
    }

    #[test]
    fn requests_below_the_annotations_are_raised_and_larger_ones_kept() {
        let mut containers = both();
        let limits = json!({"weir.dev/plan-permille": "1", "weir.dev/seats": "2", "weir.dev/host-memory-mib": "1k"});
        containers[0]["resources"] = json!({ "limits": limits });
        let own = json!({
            "weir.dev/isolation": "shared", "weir.dev/quota-request": "0.5", "weir.dev/gpu-memory": "1Gi",
        });
        let spec = delivered(&pod(own, containers));
        let resources = &spec["containers"][0]["resources"];
        let raised = json!({"weir.dev/plan-permille": "500", "weir.dev/seats": "2", "weir.dev/host-memory-mib": "1024"});
        assert_eq!(resources["limits"], raised);
        assert_eq!(resources["requests"], raised);
    }

    #[test]
    fn a_second_call_changes_nothing() {
        for annotations in [
            json!({ "weir.dev/slo": "1s" }),
            json!({ "weir.dev/isolation": "shared", "weir.dev/quota-request": "0.1" }),
        ] {
            for software_gpu in [false, true] {
                let delivery = Delivery {
                    software_gpu,
                    ..delivery()
                };
                let mut pod = pod(annotations.clone(), both());
                let spec = deliver(&pod, &delivery).unwrap().unwrap();
                pod.data["spec"] = spec;
                assert_eq!(deliver(&pod, &delivery).unwrap(), None);
            }
        }
    }

    #[test]
    fn injected_sidecars_and_skipped_containers_get_no_library() {
        let mut containers = both();
        let list = containers.as_array_mut().unwrap();
        list.push(json!({ "name": "istio-proxy", "env": [] }));
        list.push(json!({ "name": "logger", "env": [{ "name": "K_REVISION", "value": "r" }] }));
        let own = json!({ "weir.dev/gpu-memory": "1Gi", "weir.dev/skip-containers": "logger" });
        let spec = delivered(&pod(own, containers.clone()));
        assert_eq!(spec["containers"][2], containers[2]);
        assert_eq!(spec["containers"][3], containers[3]);
    }

    #[test]
    fn a_conflicting_mount_or_variable_is_named() {
        let mut containers = both();
        containers[0]["volumeMounts"] = json!([{ "name": "shm", "mountPath": "/dev/shm/" }]);
        let why = deliver(
            &pod(json!({ "weir.dev/isolation": "shared" }), containers),
            &delivery(),
        )
        .unwrap_err();
        assert!(
            why.starts_with("container user-container: volume shm is mounted at /dev/shm"),
            "{why}"
        );
        let mut containers = both();
        containers[0]["env"]
            .as_array_mut()
            .unwrap()
            .push(json!({ "name": "LD_PRELOAD", "valueFrom": { "fieldRef": {} } }));
        let why = deliver(
            &pod(json!({ "weir.dev/evict": "host" }), containers),
            &delivery(),
        )
        .unwrap_err();
        assert!(why.contains("weir.dev/skip-containers"), "{why}");
    }
}
