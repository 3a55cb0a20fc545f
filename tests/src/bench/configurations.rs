//! Configurations of other proxies in front of a user container at a port of loopback.

use std::net::IpAddr;
use std::path::Path;

/// Port of a proxy; if it needs a second one for HTTP/2, that is the next.
pub(super) const PORT: u16 = 8012;

pub(super) fn nginx(ip: IpAddr, app: u16, folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
  fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream app {{ server 127.0.0.1:{app}; keepalive 1000; keepalive_requests 100000000; }}
  server {{
    listen {ip}:{PORT} backlog=4096; keepalive_requests 100000000;
    location / {{ proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection \"\";
      proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; }}
  }}
  server {{
    listen {ip}:{} http2 backlog=4096; keepalive_requests 100000000;
    location / {{ proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection \"\"; }}
  }}
}}
",
        PORT + 1
    )
}

/// Returns a configuration with one listener for both protocols, and the client's protocol upstream.
pub(super) fn envoy(ip: IpAddr, app: u16) -> String {
    let address = |ip: &str, port: u16| serde_json::json!({"socket_address": {"address": ip, "port_value": port}});
    let types = "type.googleapis.com/envoy.extensions";
    serde_json::json!({
        "static_resources": {
            "listeners": [{
                "address": address(&ip.to_string(), PORT),
                "filter_chains": [{"filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": {
                        "@type": format!("{types}.filters.network.http_connection_manager.v3.HttpConnectionManager"),
                        "stat_prefix": "bench",
                        "route_config": {"virtual_hosts": [{
                            "name": "all", "domains": ["*"],
                            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "app"}}],
                        }]},
                        "http_filters": [{
                            "name": "envoy.filters.http.router",
                            "typed_config": {"@type": format!("{types}.filters.http.router.v3.Router")},
                        }],
                    },
                }]}],
            }],
            "clusters": [{
                "name": "app",
                "connect_timeout": "1s",
                "circuit_breakers": {"thresholds": [{"max_connections": 20_000, "max_pending_requests": 20_000, "max_requests": 20_000}]},
                "typed_extension_protocol_options": {
                    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                        "@type": format!("{types}.upstreams.http.v3.HttpProtocolOptions"),
                        "use_downstream_protocol_config": {"http2_protocol_options": {}},
                    },
                },
                "load_assignment": {
                    "cluster_name": "app",
                    "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address("127.0.0.1", app)}}]}],
                },
            }],
        },
    })
    .to_string()
}

pub(super) fn haproxy(ip: IpAddr, app: u16) -> String {
    format!(
        "global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout client 300s
  timeout server 300s
  timeout connect 1s
  http-reuse always
  option forwardfor
frontend one
  bind {ip}:{PORT}
  default_backend app
frontend two
  bind {ip}:{} proto h2
  default_backend app2
backend app
  server app 127.0.0.1:{app}
backend app2
  server app 127.0.0.1:{app} proto h2
",
        PORT + 1
    )
}
