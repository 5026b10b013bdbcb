//! The Services: one for the members' names, one that leads to the primary, one that leads to replicas in sync.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::intent::Intent;
use crate::names::{self, ADMIN_PORT, AGENT_PORT, LABEL_READS, LABEL_ROLE, PORT};

/// The value of the role label of the primary.
pub(crate) const PRIMARY: &str = "primary";

/// `NAME`: headless. Members that are not ready have names too, as replication and the operator must reach them.
pub fn headless_service(intent: &Intent) -> Service {
    let spec = ServiceSpec {
        cluster_ip: Some("None".into()),
        publish_not_ready_addresses: Some(true),
        ports: Some(vec![
            port("mysql", PORT),
            port("admin", ADMIN_PORT),
            port("agent", AGENT_PORT),
        ]),
        ..ServiceSpec::default()
    };
    finished(intent, intent.name.clone(), None, spec)
}

/// `NAME-primary`: for writes.
pub fn primary_service(intent: &Intent) -> Service {
    leading(intent, names::primary_service(&intent.name), (LABEL_ROLE, PRIMARY))
}

/// `NAME-read`: for reads.
pub fn read_service(intent: &Intent) -> Service {
    leading(intent, names::read_service(&intent.name), (LABEL_READS, "true"))
}

fn leading(intent: &Intent, name: String, label: (&str, &str)) -> Service {
    let spec = ServiceSpec {
        ports: Some(vec![port("mysql", PORT)]),
        ..ServiceSpec::default()
    };
    finished(intent, name, Some(label), spec)
}

fn finished(intent: &Intent, name: String, label: Option<(&str, &str)>, spec: ServiceSpec) -> Service {
    let mut selector = names::selector(&intent.name);
    selector.extend(label.map(|(key, value)| (key.to_owned(), value.to_owned())));
    Service {
        metadata: super::metadata(intent, name),
        spec: Some(ServiceSpec {
            selector: Some(selector),
            ..spec
        }),
        status: None,
    }
}

fn port(name: &str, number: i32) -> ServicePort {
    ServicePort {
        name: Some(name.into()),
        port: number,
        target_port: Some(IntOrString::Int(number)),
        protocol: Some("TCP".into()),
        ..ServicePort::default()
    }
}
