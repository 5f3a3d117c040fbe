"""A VPC for endpoints: private subnets without a way out, but for S3."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from constructs import Construct

from stacks.log_groups import make_log_group


class Network(Construct):
    """Isolated subnets, one in each Availability Zone, and a security group that lets nothing in.

    The network costs nothing by itself: there is neither a NAT gateway nor an interface endpoint.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cidr: str,
        availability_zones: int,
        log_name: str,
        log_retention_days: int,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, id)
        self.ec2_vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(cidr),
            max_azs=availability_zones,
            nat_gateways=0,
            subnet_configuration=[
                ec2.SubnetConfiguration(
                    name="Endpoints", subnet_type=ec2.SubnetType.PRIVATE_ISOLATED
                )
            ],
            gateway_endpoints={
                "S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3)
            },
        )
        flows = make_log_group(
            self, "Log", name=f"/ballot/{log_name}", retention_days=log_retention_days, key=key
        )
        self.ec2_vpc.add_flow_log(
            "Flows", destination=ec2.FlowLogDestination.to_cloud_watch_logs(flows)
        )
        self.ec2_security_group = ec2.SecurityGroup(
            self,
            "SecurityGroup",
            vpc=self.ec2_vpc,
            description="Ballot endpoints: nothing in, HTTPS out",
            allow_all_outbound=False,
        )
        # The subnets' only route out of the VPC leads to S3.
        self.ec2_security_group.add_egress_rule(
            ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "The model, from S3"
        )
        self.subnet_ids = [subnet.subnet_id for subnet in self.ec2_vpc.isolated_subnets]
        self.security_group_ids = [self.ec2_security_group.security_group_id]
        self.exported = [*self.subnet_ids, *self.security_group_ids]
