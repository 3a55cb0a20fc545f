//! Names of Kubernetes, Knative and Weir objects, labels and keys used by role `control`.

/// Value of [`MANAGED_BY`] of Weir's own slices (contracts §5).
pub(crate) const MANAGER: &str = "activator-ext.weir.dev";
/// The label with the manager of a slice.
pub(crate) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] of slices that are mirrored copies of Endpoints.
pub(crate) const MIRRORING: &str = "endpointslicemirroring-controller.k8s.io";
/// The label with the Service to which a slice belongs.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label of Endpoints which excludes them from mirroring to slices.
pub(crate) const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
/// The label that distinguishes the public and private Services of a revision, and their Endpoints.
pub(crate) const SERVICE_TYPE: &str = "networking.internal.knative.dev/serviceType";
/// Value of [`SERVICE_TYPE`] of public Services.
pub(crate) const PUBLIC: &str = "Public";
/// The finalizer that keeps an object until every revision is detached.
pub(crate) const FINALIZER: &str = "weir.dev/detach";
/// The label of Weir's own objects.
pub(crate) const PART_OF: &str = "app.kubernetes.io/part-of";
/// Value of [`PART_OF`] of Weir's own objects.
pub(crate) const WEIR: &str = "weir";
/// Name of the Lease of the election, and of role `control`'s Deployment and other objects.
pub(crate) const CONTROL: &str = "weir-control";
/// The ConfigMap with the revisions that are detached by hand: keys `all` and `<namespace>.<revision>`.
pub(crate) const DETACHED: &str = "weir-detached";
/// The key of [`DETACHED`] for all revisions.
pub(crate) const ALL: &str = "all";
/// The key of `config-network` with the mode of a mesh, in which pods may not be addressable.
pub(crate) const MESH_MODE: &str = "mesh-compatibility-mode";

/// Returns the key of [`DETACHED`] for a revision.
pub(crate) fn detached_key(namespace: &str, revision: &str) -> String {
    format!("{namespace}.{revision}")
}
/// Name of the Secret with the authority, and of the ConfigMap that publishes it.
pub(crate) const AUTHORITY: &str = "weir-ca";
/// Name of the Secret with a program's certificate and key, in its namespace.
pub(crate) const CERTIFICATES: &str = "weir-certificates";
/// Name of the validating and of the mutating webhook configuration.
pub(crate) const WEBHOOKS: &str = "weir";
/// The Service by which the API server calls the webhooks.
pub(crate) const WEBHOOK_SERVICE: &str = "weir-webhook";
