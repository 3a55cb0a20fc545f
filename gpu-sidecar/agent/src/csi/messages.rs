//! Messages of the kubelet's plugin registration (`pluginregistration`, v1) and of the container storage interface (`csi.v1`,
//! 1.11), limited to those of a driver of inline volumes. Unread fields are omitted.

use std::collections::HashMap;

/// A request or response without relevant fields.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Empty {}

/// Response of `GetInfo`: `pluginregistration.PluginInfo`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct PluginInfo {
    /// Type of the plugin: `CSIPlugin`.
    #[prost(string, tag = "1")]
    pub(super) kind: String,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    /// Path of the socket with the driver's services.
    #[prost(string, tag = "3")]
    pub(super) endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub(super) supported_versions: Vec<String>,
}

/// Request of `NotifyRegistrationStatus`: `pluginregistration.RegistrationStatus`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub(super) plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub(super) error: String,
}

/// Name and version of the driver: `csi.v1.GetPluginInfoResponse`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct DriverInfo {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) vendor_version: String,
}

/// Readiness of the driver: `csi.v1.ProbeResponse`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct ProbeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) ready: Option<BoolValue>,
}

/// A wrapped boolean: `google.protobuf.BoolValue`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct BoolValue {
    #[prost(bool, tag = "1")]
    pub(super) value: bool,
}

/// Identity of the node: `csi.v1.NodeGetInfoResponse`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct NodeInfo {
    #[prost(string, tag = "1")]
    pub(super) node_id: String,
    /// Maximum number of volumes; 0: unlimited.
    #[prost(int64, tag = "2")]
    pub(super) max_volumes_per_node: i64,
}

/// Request to publish a volume: `csi.v1.NodePublishVolumeRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Publish {
    #[prost(string, tag = "1")]
    pub(super) volume_id: String,
    #[prost(string, tag = "4")]
    pub(super) target_path: String,
    #[prost(map = "string, string", tag = "8")]
    pub(super) volume_context: HashMap<String, String>,
}

/// Request to remove a volume: `csi.v1.NodeUnpublishVolumeRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Unpublish {
    #[prost(string, tag = "1")]
    pub(super) volume_id: String,
    #[prost(string, tag = "2")]
    pub(super) target_path: String,
}
