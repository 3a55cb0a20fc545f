//! Names of Kubernetes' and Knative's that attaching has to do with.

/// Labels a slice of ours, as `endpointslice.kubernetes.io/managed-by` (design §3.1).
pub(crate) const MANAGER: &str = "activator-ext.weir.dev";
/// By whom a slice is kept.
pub(crate) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Keeps slices that are copies of Endpoints.
pub(crate) const MIRRORING: &str = "endpointslicemirroring-controller.k8s.io";
/// The Service whose endpoints a slice names.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// On Endpoints: they are not copied to slices.
pub(crate) const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Says whether a Service, and its Endpoints, are the public or the private ones of a revision …
pub(crate) const SERVICE_TYPE: &str = "networking.internal.knative.dev/serviceType";
/// … by this value.
pub(crate) const PUBLIC: &str = "Public";
/// Keeps an object until every revision is detached.
pub(crate) const FINALIZER: &str = "weir.dev/detach";
/// Objects of Weir's own have this label …
pub(crate) const PART_OF: &str = "app.kubernetes.io/part-of";
/// … with this value.
pub(crate) const WEIR: &str = "weir";
/// The Lease by which one process leads, and the name of what role `control` is and runs with.
pub(crate) const CONTROL: &str = "weir-control";
/// The ConfigMap that names what is to be detached by hand: keys `all` and `<namespace>.<revision>`.
pub(crate) const DETACHED: &str = "weir-detached";
/// The key that stands for all revisions.
pub(crate) const ALL: &str = "all";
/// The key of `config-network` that says whether pods can be addressed beside a mesh.
pub(crate) const MESH_MODE: &str = "mesh-compatibility-mode";

/// Returns the key of [`DETACHED`] that stands for a revision.
pub(crate) fn detached_key(namespace: &str, revision: &str) -> String {
    format!("{namespace}.{revision}")
}
/// The Secret of the authority, and the ConfigMap that publishes it.
pub(crate) const AUTHORITY: &str = "weir-ca";
/// The Secret with a program's certificate and key, in its namespace.
pub(crate) const CERTIFICATES: &str = "weir-certificates";
/// Both configurations of webhooks.
pub(crate) const WEBHOOKS: &str = "weir";
/// The Service by which the API server calls them.
pub(crate) const WEBHOOK_SERVICE: &str = "weir-webhook";
